// sample: which log-probabilities are told, raw ones and those that a row draws from.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/host/sampling.h"
#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

class SampleLogprobsTest : public OpsTest {};

// What is told is what the model said: raw log-probabilities, as vLLM's by default. The token is
// that of the penalised logits.
TEST_P(SampleLogprobsTest, PenaltiesChooseTheTokenAndLogprobsAreTheModels) {
  const int32_t vocab = 90;
  SampleCase c(harness(), 1, vocab, 3);
  c.logits = random_values(vocab, DType::kFloat32, 6, 4.0f);
  SlotParams& p = c.params[0];
  p.uses_history = 1;
  p.repetition_penalty = 1.3f;
  p.frequency_penalty = 0.4f;
  p.presence_penalty = 0.7f;
  p.num_logprobs = 5;
  p.num_logit_bias = 1;
  c.bias_token[0] = 12;
  c.bias_value[0] = 12.5f;
  for (int32_t i = 0; i < vocab; i += 3) c.in_prompt[i] = 1;
  for (int32_t i = 0; i < vocab; i += 4) c.output_count[i] = i % 5;
  std::vector<std::pair<double, int32_t>> penalised, expected;
  double sum = 0;
  for (int32_t i = 0; i < vocab; ++i) {
    double x = c.logits[i] + (i == 12 ? 12.5 : 0.0);
    const int n = c.output_count[i];
    if (n > 0 || c.in_prompt[i] != 0) x = x > 0 ? x / 1.3f : x * 1.3f;
    if (n > 0) x -= double{0.4f} * n + 0.7f;
    penalised.push_back({-x, i});
    sum += std::exp(double{c.logits[i]});
    expected.push_back({-double{c.logits[i]}, i});
  }
  std::sort(penalised.begin(), penalised.end());
  std::sort(expected.begin(), expected.end());
  c.run();
  ASSERT_NE(expected[0].second, penalised[0].second);
  EXPECT_EQ(c.tokens[0], penalised[0].second);
  EXPECT_NEAR(c.logprobs[0], c.logits[c.tokens[0]] - std::log(sum), 1e-5);
  for (int i = 0; i < kMaxLogprobs; ++i) {
    EXPECT_EQ(c.top_tokens[i], i < 5 ? expected[i].second : -1);
    EXPECT_NEAR(c.top_logprobs[i], i < 5 ? -expected[i].first - std::log(sum) : 0, 1e-5);
  }
  c.tells_logits = true;
  c.run();
  EXPECT_EQ(c.logprobs[0], c.logits[c.tokens[0]]);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(c.top_logprobs[i], -expected[i].first);
}

TEST_P(SampleLogprobsTest, AMaskForbidsTokensAndLeavesTheirLogprobs) {
  const int32_t vocab = 5000;
  for (const float temperature : {0.0f, 0.8f}) {
    SampleCase c(harness(), 2, vocab);
    c.logits = random_values(2 * vocab, DType::kFloat32, 9, 2.0f);
    const int32_t words = (vocab + 31) / 32;
    for (int32_t row = 0; row < 2; ++row) {
      c.params[row].temperature = temperature;
      c.params[row].has_allowed_mask = 1;
      c.params[row].num_logprobs = 3;
      c.mask[row * words + 40] = 0xf0f0;
    }
    c.run();
    for (int32_t row = 0; row < 2; ++row) {
      const float* logits = c.logits.data() + int64_t{row} * vocab;
      double sum = 0;
      for (int32_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]});
      EXPECT_EQ(c.tokens[row] / 32, 40);
      EXPECT_NEAR(c.logprobs[row], logits[c.tokens[row]] - std::log(sum), 1e-5);
      Candidate best[3];
      top_tokens(logits, vocab, 3, best);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(c.top_tokens[row * kMaxLogprobs + i], best[i].token);
        EXPECT_NEAR(c.top_logprobs[row * kMaxLogprobs + i], best[i].logit - std::log(sum), 1e-5);
      }
    }
  }
}

TEST_P(SampleLogprobsTest, LogprobsAreThoseBeforeTemperature) {
  SampleCase c(harness(), 1, 40);
  c.logits = random_values(40, DType::kFloat32, 8, 2.0f);
  c.params[0].temperature = 5;
  c.params[0].num_logprobs = 0;
  c.params[0].seed = 3;
  c.run();
  double sum = 0;
  for (const float x : c.logits) sum += std::exp(double{x});
  EXPECT_NEAR(c.logprobs[0], c.logits[c.tokens[0]] - std::log(sum), 1e-5);
  EXPECT_EQ(c.top_tokens[0], -1);
}

// What a row draws from, by vLLM's order: mask, bias, penalties. A greedy row divides by 1 and cuts
// nothing.
std::vector<float> behind_penalties(const SampleCase& c, int32_t row, int32_t vocab) {
  const SlotParams& p = c.params[row];
  std::vector<float> x(c.logits.begin() + row * vocab, c.logits.begin() + (row + 1) * vocab);
  const int32_t words = (vocab + 31) / 32;
  for (int32_t i = 0; i < vocab; ++i) {
    if (p.has_allowed_mask != 0 && (c.mask[row * words + i / 32] >> (i % 32) & 1u) == 0)
      x[i] = -kInfinity;
    for (int32_t b = 0; b < p.num_logit_bias; ++b) {
      if (c.bias_token[row * kMaxLogitBias + b] == i) x[i] += c.bias_value[row * kMaxLogitBias + b];
    }
    const int32_t at = row * vocab + i, n = c.output_count[at];
    if (p.uses_history == 0 || (n == 0 && c.in_prompt[at] == 0)) continue;
    x[i] = x[i] > 0 ? x[i] / p.repetition_penalty : x[i] * p.repetition_penalty;
    if (n > 0) x[i] -= p.frequency_penalty * static_cast<float>(n) + p.presence_penalty;
  }
  return x;
}

TEST_P(SampleLogprobsTest, ProcessedLogprobsAreOfWhatTheRowDrawsFrom) {
  struct Row {
    float temperature, top_p, min_p;
    int32_t top_k, num_logprobs;
    bool masked, penalised;
  };
  const Row rows[] = {
      {0, 1, 0, 0, 5, false, false},
      {0, 0.5f, 0.2f, 3, 20, true, true},
      {1, 1, 0, 0, 20, false, false},
      {0.7f, 1, 0, 0, 3, false, true},
      {0.7f, 1, 0, 6, 20, false, false},
      {1.5f, 0.8f, 0, 0, 20, false, true},
      {1.5f, 0.8f, 0.02f, 200, 20, true, false},
      {0.9f, 1, 0.1f, 0, 0, false, true},
      {0.9f, 0.6f, 0, 9, 12, true, true},
      {0.5f, 1, 0.01f, 250, 20, true, true},
  };
  const int32_t count = static_cast<int32_t>(std::size(rows)), vocab = 300,
                words = (vocab + 31) / 32;
  for (const int32_t shards : {1, 3}) {
    for (const bool logits : {false, true}) {
      SampleCase c(harness(), count, vocab, shards);
      c.tells_processed = true;
      c.tells_logits = logits;
      c.logits = random_values(count * vocab, DType::kFloat32, 11, 3.0f);
      for (int32_t r = 0; r < count; ++r) {
        SlotParams& p = c.params[r];
        p.temperature = rows[r].temperature;
        p.top_p = rows[r].top_p;
        p.min_p = rows[r].min_p;
        p.top_k = rows[r].top_k;
        p.num_logprobs = rows[r].num_logprobs;
        p.seed = 40 + r;
        p.has_allowed_mask = rows[r].masked ? 1 : 0;
        for (int32_t w = 0; w < words; ++w) c.mask[r * words + w] = 0x5a0ff0a5u << w;
        if (!rows[r].penalised) continue;
        p.uses_history = 1;
        p.repetition_penalty = 1.2f;
        p.frequency_penalty = 0.3f;
        p.presence_penalty = 0.6f;
        p.num_logit_bias = 1;
        c.bias_token[r * kMaxLogitBias] = 33;
        c.bias_value[r * kMaxLogitBias] = 7;
        for (int32_t i = 0; i < vocab; ++i) {
          c.in_prompt[r * vocab + i] = i % 3 == 0;
          c.output_count[r * vocab + i] = i % 4 == 0 ? i % 5 : 0;
        }
      }
      std::vector<std::vector<float>> drawn_from;
      for (int32_t r = 0; r < count; ++r) drawn_from.push_back(behind_penalties(c, r, vocab));
      c.run();
      for (int32_t r = 0; r < count; ++r) {
        SCOPED_TRACE(testing::Message() << "row " << r << ", shards " << shards << ", " << logits);
        SlotParams p = c.params[r];
        if (p.temperature == 0) {
          p = {};
          p.num_logprobs = rows[r].num_logprobs;
        }
        const auto kept = reference(drawn_from[r], p);
        const auto told = [&](int32_t token) -> double {
          if (!kept.contains(token) || kept.at(token) == 0) return -kInfinity;
          return logits ? double{drawn_from[r][token]} / p.temperature : std::log(kept.at(token));
        };
        std::vector<std::pair<double, int32_t>> best;
        for (int32_t i = 0; i < vocab; ++i) best.push_back({-told(i), i});
        std::sort(best.begin(), best.end());
        const int32_t token = c.tokens[r];
        ASSERT_GE(token, 0);
        ASSERT_GT(told(token), -kInfinity) << token << " was cut out";
        if (rows[r].temperature == 0) {
          EXPECT_EQ(token, best[0].second);
        }
        EXPECT_NEAR(c.logprobs[r], told(token), 2e-5);
        for (int32_t i = 0; i < p.num_logprobs; ++i) {
          const float value = c.top_logprobs[r * kMaxLogprobs + i];
          EXPECT_EQ(c.top_tokens[r * kMaxLogprobs + i], best[i].second) << i;
          if (std::isinf(best[i].first)) {
            EXPECT_EQ(value, -kInfinity) << i;
          } else {
            EXPECT_NEAR(value, -best[i].first, 2e-5) << i;
          }
        }
        if (p.num_logprobs < kMaxLogprobs) {
          EXPECT_EQ(c.top_tokens[r * kMaxLogprobs + p.num_logprobs], -1);
        }
      }
    }
  }
}

TEST_P(SampleLogprobsTest, ATemperatureMakesNoInfinityOfAProcessedLogit) {
  SampleCase c(harness(), 1, 40);
  c.tells_processed = c.tells_logits = true;
  c.logit(0, 7) = 3e38f;
  c.logit(0, 8) = -kInfinity;
  c.params[0].temperature = 0.1f;
  c.params[0].num_logprobs = 2;
  c.run();
  EXPECT_EQ(c.tokens[0], 7);
  EXPECT_EQ(c.logprobs[0], std::numeric_limits<float>::max());
  EXPECT_EQ(c.top_tokens[1], 0);
  EXPECT_EQ(c.top_logprobs[1], 0);
}

INSTANTIATE_TEST_SUITE_P(Device, SampleLogprobsTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
