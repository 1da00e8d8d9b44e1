// sample: greedy, filters against a plain reference, distribution, penalties, log-probabilities.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "kernels/host/sampling.h"
#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

class SampleTest : public OpsTest {
 protected:
  // Draws many positions of one distribution; every token drawn is one the reference keeps, every
  // kept token of weight is drawn, and the counts pass a chi-square test at 5 sigma.
  void check_distribution(const std::vector<float>& logits, SlotParams p) {
    const auto kept = reference(logits, p);
    const int32_t draws = 20000, batch = 500, vocab = static_cast<int32_t>(logits.size());
    std::map<int32_t, int> counts;
    p.seed = 12345;
    for (int32_t first = 0; first < draws; first += batch) {
      SampleCase c(harness(), batch, vocab);
      for (int32_t r = 0; r < batch; ++r) {
        c.params[r] = p;
        c.seq_lens[r] = first + r;
        std::copy(logits.begin(), logits.end(), c.logits.begin() + r * vocab);
      }
      c.run();
      for (const int32_t token : c.tokens) ++counts[token];
    }
    double chi = 0;
    int degrees = -1;
    for (const auto& [token, n] : counts) {
      ASSERT_TRUE(kept.contains(token)) << "token " << token << " was filtered out";
    }
    for (const auto& [token, probability] : kept) {
      const double expected = probability * draws;
      if (expected < 5) continue;
      chi += (counts[token] - expected) * (counts[token] - expected) / expected;
      ++degrees;
    }
    EXPECT_LT(chi, degrees + 5 * std::sqrt(2.0 * std::max(1, degrees)));
  }
};

TEST_P(SampleTest, GreedyTakesTheHighestLogitAndTheLowestTokenOfATie) {
  for (const int32_t vocab : {1, 7, 1023, 5000}) {
    for (const int32_t shards : {1, 2, 3}) {
      SampleCase c(harness(), 4, vocab, shards);
      c.turn = static_cast<uint32_t>(7 + shards);
      c.logits = random_values(4 * vocab, DType::kFloat32, 1);
      c.logit(1, vocab / 2) = c.logit(1, vocab - 1) = 3;
      c.logit(2, 0) = c.logit(2, vocab / 3) = 2;
      if (vocab > 1) c.logit(3, 0) = std::nanf("");
      c.logit(3, vocab - 1) = 5;
      c.run();
      const auto row = c.logits.begin();
      EXPECT_EQ(c.tokens, std::vector<int32_t>(
                              {static_cast<int32_t>(std::max_element(row, row + vocab) - row),
                               vocab / 2, 0, vocab - 1}));
    }
  }
}

TEST_P(SampleTest, ManyRowsGoToTheOutputsOfTheirTurn) {
  constexpr int32_t kRows = 40, kVocab = 300;
  for (const uint32_t turn : {20u, 21u}) {
    SampleCase c(harness(), kRows, kVocab);
    c.turn = turn;
    c.logits = random_values(kRows * kVocab, DType::kFloat32, turn);
    std::vector<int32_t> expected;
    for (int32_t r = 0; r < kRows; ++r) {
      c.params[r].num_logprobs = r % 3 == 1 ? 1 : -1;  // these are not plainly greedy
      const auto row = c.logits.begin() + r * kVocab;
      expected.push_back(static_cast<int32_t>(std::max_element(row, row + kVocab) - row));
    }
    c.run();
    EXPECT_EQ(c.tokens, expected);
    for (int32_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(c.top_tokens[r * kMaxLogprobs], r % 3 == 1 ? expected[r] : -1);
      EXPECT_EQ(c.logprobs[r] < 0, r % 3 == 1);
    }
  }
}

TEST_P(SampleTest, OnlySamplingLiveRowsGiveATokenAndUpdateTheirSlot) {
  SampleCase c(harness(), 4, 10);
  for (int32_t r = 0; r < 4; ++r) c.logit(r, 3 + r) = 1;
  c.params[0].uses_history = c.params[1].uses_history = 1;
  c.flags[1] = 0;
  c.run(3);
  EXPECT_EQ(c.tokens, std::vector<int32_t>({3, -1, 5, -1}));
  EXPECT_EQ(c.last_token, std::vector<int32_t>({3, -5, 5, -5, -5}));
  std::vector<int32_t> counts(5 * 10, 0);
  counts[3] = 1;
  EXPECT_EQ(c.output_count, counts);
}

TEST_P(SampleTest, ARowWithoutANumberGivesMinusOne) {
  SampleCase c(harness(), 2, 40);
  std::fill_n(c.logits.begin(), 40, std::nanf(""));
  std::fill_n(c.logits.begin() + 40, 40, -kInfinity);
  c.params[1].temperature = 1;
  c.params[1].num_logprobs = 3;
  c.run();
  EXPECT_EQ(c.tokens, std::vector<int32_t>({-1, -1}));
}

#if !defined(REFRAIN_TSAN) && !defined(REFRAIN_ASAN)  // a matter of numbers
TEST_P(SampleTest, DrawsFollowTheFilteredDistribution) {
  const auto logits = random_values(60, DType::kFloat32, 9, 3.0f);
  SlotParams p;
  p.temperature = 0.8f;
  check_distribution(logits, p);
  p.top_k = 7;
  check_distribution(logits, p);
  p.top_p = 0.6f;
  check_distribution(logits, p);
  p.top_k = 0;
  check_distribution(logits, p);
  p.min_p = 0.05f;
  p.top_p = 0.9f;
  check_distribution(logits, p);
  p.top_p = 1.0f;
  check_distribution(logits, p);
  p.top_k = 4;
  p.top_p = 0.9f;
  p.temperature = 2.0f;
  check_distribution(logits, p);
}
#endif

TEST_P(SampleTest, TopKKeepsTies) {
  std::vector<float> logits(20, 0.0f);
  logits[4] = 2;
  logits[9] = logits[13] = logits[17] = 1;
  SlotParams p;
  p.top_k = 2;
  check_distribution(logits, p);
}

TEST_P(SampleTest, TopPOfAFlatLargeVocabularyAgreesWithTheReference) {
  const int32_t vocab = 4000;
  const auto logits = random_values(vocab, DType::kFloat32, 3, 0.5f);
  for (const float top_p : {0.01f, 0.5f, 0.999f}) {
    SlotParams p;
    p.top_p = top_p;
    const auto kept = reference(logits, p);
    SampleCase c(harness(), 64, vocab);
    for (int32_t r = 0; r < 64; ++r) {
      c.params[r] = p;
      c.params[r].seed = r;
      std::copy(logits.begin(), logits.end(), c.logits.begin() + r * vocab);
    }
    c.run();
    for (const int32_t token : c.tokens) EXPECT_TRUE(kept.contains(token)) << token;
  }
}

TEST_P(SampleTest, ADrawDependsOnSeedAndPositionOnly) {
  const int32_t vocab = 3000;
  const auto logits = random_values(vocab, DType::kFloat32, 4);
  std::vector<int32_t> alone;
  for (const int32_t rows : {1, 2, 9}) {
    SampleCase c(harness(), rows, vocab, rows == 2 ? 2 : 1);
    for (int32_t r = 0; r < rows; ++r) {
      std::copy(logits.begin(), logits.end(), c.logits.begin() + r * vocab);
      c.params[r].temperature = 1;
      c.params[r].seed = 100 + r;
      c.seq_lens[r] = 20;
    }
    c.params[rows - 1].seed = 77;
    c.run();
    if (rows == 1) alone = c.tokens;
    EXPECT_EQ(c.tokens[rows - 1], alone[0]);
    const std::set<int32_t> distinct(c.tokens.begin(), c.tokens.end());
    EXPECT_GT(distinct.size(), rows == 9 ? 5u : 0u);
  }
}

TEST_P(SampleTest, PhiloxMatchesThePublishedVectors) {
  // Random123's known answers for philox4x32-10: counter and key all zeros.
  const PhiloxWords zero = philox(0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
}

TEST_P(SampleTest, MaskAndBiasDecideWhatCanBeSampled) {
  SampleCase c(harness(), 3, 70);
  c.logits = random_values(3 * 70, DType::kFloat32, 5);
  c.params[0].has_allowed_mask = 1;
  c.mask[0 * 3 + 1] = 1u << 8;  // token 40
  c.params[1].num_logit_bias = 2;
  c.bias_token[kMaxLogitBias] = 66;
  c.bias_value[kMaxLogitBias] = 50;
  c.bias_token[kMaxLogitBias + 1] = 3;
  c.bias_value[kMaxLogitBias + 1] = 49;
  c.params[2].has_allowed_mask = 1;
  c.params[2].temperature = 1.5f;
  c.params[2].top_p = 0.9f;
  c.mask[2 * 3] = 1u << 31;
  c.run();
  EXPECT_EQ(c.tokens, std::vector<int32_t>({40, 66, 31}));
}

TEST_P(SampleTest, AGrammarsMaskIsThatOfTheTurn) {
  const int32_t vocab = 700;  // a block of a cluster begins within a word
  SampleCase c(harness(), 4, vocab);
  const int64_t words = (vocab + 31) / 32;
  c.logits = random_values(4 * vocab, DType::kFloat32, 8);
  for (const int32_t row : {0, 1, 3}) {
    c.params[row].has_allowed_mask = c.params[row].follows_grammar = 1;
    c.grammar_ready[row] = c.turn;
  }
  c.params[3].temperature = 1;
  c.mask.assign(c.mask.size(), ~0u);  // of the slots: not asked
  c.grammar_mask[0 * words + 20] = 1u << 11;
  c.grammar_mask[3 * words + 3] = 1u << 4;
  c.run();
  EXPECT_EQ(c.tokens[0], 651);
  EXPECT_EQ(c.tokens[1], -1) << "no token is allowed";
  EXPECT_EQ(c.tokens[3], 100);
}

// At both ends of what a request may ask for, and whatever the logits: there is a token.
TEST_P(SampleTest, PenaltiesForbidNoToken) {
  for (const float penalty : {0.01f, 100.0f}) {
    for (const float extreme : {3e38f, -3e38f}) {
      for (const float temperature : {0.0f, 1e-40f, 1.1e-5f, 2.0f}) {
        SampleCase c(harness(), 2, 40);
        c.logits.assign(c.logits.size(), extreme);
        c.logit(1, 7) = -kInfinity;
        for (SlotParams& p : c.params) {
          p.temperature = temperature;
          p.uses_history = 1;
          p.repetition_penalty = penalty;
          p.frequency_penalty = 2;
          p.presence_penalty = 2;
          p.num_logprobs = 0;
        }
        std::fill(c.in_prompt.begin(), c.in_prompt.end(), 1);
        std::fill(c.output_count.begin(), c.output_count.end(), 1 << 24);
        c.run();
        for (int row = 0; row < 2; ++row) {
          EXPECT_GE(c.tokens[row], 0) << penalty << " " << extreme << " " << temperature;
          EXPECT_FALSE(std::isnan(c.logprobs[row]));
        }
        EXPECT_NE(c.tokens[1], 7);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, SampleTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
