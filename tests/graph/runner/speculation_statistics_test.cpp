// CG-40: what is sampled with speculation has the model's distribution. The first three tokens of
// many seeds are counted and held against the probabilities that follow from the logits of single
// runs, written down plainly. Seeds are fixed: a run gives the same counts every time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tests/graph/runner/session.h"

namespace refrain::tests::speculation_statistics {
namespace {

using Tokens = std::vector<TokenId>;

const Tokens& allowed() {
  static const Tokens tokens = {5, 6, 7, 8};
  return tokens;
}
// Its tokens come again, so that there are drafts.
Tokens first_tokens() { return {5, 6, 7, 5, 6, 8, 5, 7}; }
constexpr size_t kDrawn = 3;
constexpr int kBatches = 400, kRows = 6;

struct Sampling {
  const char* name;
  float temperature = 1.0f, top_p = 1.0f, repetition = 1.0f, presence = 0.0f;
  int32_t top_k = 0;
  bool draft_model = false;
};

// Probabilities of the allowed tokens after `tokens`, of these logits.
std::map<TokenId, double> distribution(const Sampling& sampling, const std::vector<float>& logits,
                                       const Tokens& tokens) {
  struct One {
    TokenId token;
    double logit, weight;
  };
  std::vector<One> all;
  for (const TokenId token : allowed()) {
    double logit = logits[static_cast<size_t>(token)];
    if (std::ranges::count(tokens, token) > 0)
      logit = logit > 0 ? logit / sampling.repetition : logit * sampling.repetition;
    if (std::count(tokens.begin() + std::ssize(first_tokens()), tokens.end(), token) > 0)
      logit -= sampling.presence;
    all.push_back({token, logit, 0});
  }
  std::ranges::sort(all, std::greater<>(), &One::logit);
  for (One& one : all) one.weight = std::exp((one.logit - all[0].logit) / sampling.temperature);
  if (sampling.top_k > 0) all.resize(static_cast<size_t>(sampling.top_k));
  const auto sum = [&all] {
    return std::accumulate(all.begin(), all.end(), 0.0,
                           [](double total, const One& one) { return total + one.weight; });
  };
  double before = 0;
  const double total = sum();
  size_t kept = 0;
  for (; kept < all.size() && before < sampling.top_p * total; ++kept) before += all[kept].weight;
  all.resize(kept);
  std::map<TokenId, double> result;
  for (const One& one : all) result[one.token] = one.weight / sum();
  return result;
}

// Of every sequence of kDrawn tokens.
std::map<Tokens, double> expected_of(const Sampling& sampling) {
  SessionOptions options = with_mode("NONE");
  const auto plain = started(options);
  std::map<Tokens, double> level = {{first_tokens(), 1.0}};
  for (size_t i = 0; i < kDrawn; ++i) {
    std::map<Tokens, double> next;
    for (const auto& [tokens, probability] : level) {
      plain->run({{0, tokens, 0}});
      for (const auto& [token, share] :
           distribution(sampling, plain->runner().read_logits(), tokens)) {
        Tokens longer = tokens;
        longer.push_back(token);
        next[longer] += probability * share;
      }
    }
    level = std::move(next);
  }
  return level;
}

// The value that chi-square of so many degrees of freedom exceeds once in a thousand (Wilson and
// Hilferty, "The distribution of chi-square", 1931).
double bound(size_t freedom) {
  const double n = static_cast<double>(freedom), z = 3.0902;
  return n * std::pow(1 - 2 / (9 * n) + z * std::sqrt(2 / (9 * n)), 3);
}

// Rows of few expected ones count together.
double chi_square(const std::map<Tokens, double>& expected, const std::map<Tokens, int>& counts,
                  int all, size_t& freedom) {
  double sum = 0, rare_expected = 0;
  int rare = 0;
  size_t cells = 0;
  const auto add = [&](double wanted, int got) {
    sum += (got - wanted) * (got - wanted) / wanted;
    ++cells;
  };
  for (const auto& [tokens, probability] : expected) {
    const double wanted = probability * all;
    const int got = counts.contains(tokens) ? counts.at(tokens) : 0;
    if (wanted < 5) {
      rare_expected += wanted;
      rare += got;
    } else {
      add(wanted, got);
    }
  }
  if (rare_expected > 0) add(std::max(rare_expected, 1.0), rare);
  freedom = cells - 1;
  return sum;
}

class SpeculationStatistics : public ::testing::TestWithParam<Sampling> {
 protected:
  static constexpr int32_t kDrafts = 3;

  // The first tokens of kRows requests, whose seeds begin at `seed`.
  void draw(Session& session, uint64_t seed, std::map<Tokens, int>& counts) {
    const Sampling& sampling = GetParam();
    std::vector<Tokens> tokens(kRows, first_tokens());
    std::vector<Row> rows;
    const Tokens drafts(1 + kDrafts, kTokenOnDevice);
    for (SlotId slot = 0; slot < kRows; ++slot) {
      session.setup().seed = seed + static_cast<uint64_t>(slot);
      const ipc::StepResult result = session.run({{slot, first_tokens(), 0}});
      tokens[static_cast<size_t>(slot)].push_back(result.tokens.at(0));
      rows.push_back({slot, drafts, static_cast<int32_t>(first_tokens().size()), true});
    }
    // Penalties count tokens one by one: such rows take no drafts.
    const bool one_by_one = sampling.repetition != 1.0f || sampling.presence != 0.0f;
    for (size_t step = 0; step + 1 < kDrawn; ++step) {
      ipc::Step message = session.make_step(rows);
      if (one_by_one)
        for (uint8_t& flags : message.runs.front().rows.flags) flags |= ipc::kNoDrafts;
      session.runner().submit(message);
      const ipc::StepResult result = session.runner().wait();
      for (size_t row = 0; row < kRows; ++row) {
        const int32_t begin = result.token_offsets[row], end = result.token_offsets[row + 1];
        tokens[row].insert(tokens[row].end(), result.tokens.begin() + begin,
                           result.tokens.begin() + end);
        accepted_ += end - begin - 1;
        rows[row].computed += 1 + kDrafts;
      }
    }
    for (Tokens& one : tokens) {
      one.resize(first_tokens().size() + kDrawn);
      ++counts[one];
    }
  }

  int64_t accepted_ = 0;
};

TEST_P(SpeculationStatistics, CG40SampledTokensHaveTheModelsDistribution) {
  const Sampling& sampling = GetParam();
  SessionOptions options = with_mode("FULL_AND_PIECEWISE");
  options.config.num_speculative_tokens = kDrafts;
  options.config.prompt_lookup_max = 3;
  static const TinyModel cut({.layers = 1});
  if (sampling.draft_model) options.draft = cut.directory();
  const auto session = started(options);
  ipc::SlotSetup& setup = session->setup();
  setup.temperature = sampling.temperature;
  setup.top_p = sampling.top_p;
  setup.top_k = sampling.top_k;
  setup.repetition_penalty = sampling.repetition;
  setup.presence_penalty = sampling.presence;
  setup.has_allowed_tokens = true;
  setup.allowed_tokens = allowed();
  std::map<Tokens, int> counts;
  for (int batch = 0; batch < kBatches; ++batch)
    draw(*session, 1000 + static_cast<uint64_t>(batch) * kRows, counts);
  const auto expected = expected_of(sampling);
  ASSERT_GT(expected.size(), 2u) << "nothing is drawn";
  for (const auto& [tokens, count] : counts)
    EXPECT_TRUE(expected.contains(tokens)) << ::testing::PrintToString(tokens) << " cannot come";
  const bool one_by_one = sampling.repetition != 1.0f || sampling.presence != 0.0f;
  EXPECT_EQ(accepted_ > kBatches, !one_by_one) << accepted_ << " drafts were right";
  size_t freedom = 0;
  const double distance = chi_square(expected, counts, kBatches * kRows, freedom);
  EXPECT_LT(distance, bound(freedom)) << freedom << " degrees of freedom";
}

#if defined(REFRAIN_TSAN) || defined(REFRAIN_ASAN)  // numbers, of one thread
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SpeculationStatistics);
#else
INSTANTIATE_TEST_SUITE_P(
    Parameters, SpeculationStatistics,
    ::testing::Values(
        Sampling{.name = "Plain", .temperature = 1.5f},
        Sampling{.name = "Temperature", .temperature = 0.7f},
        Sampling{.name = "TopK", .temperature = 2.0f, .top_k = 3},
        Sampling{.name = "TopP", .temperature = 2.0f, .top_p = 0.8f},
        Sampling{.name = "Repetition", .temperature = 1.5f, .repetition = 1.3f},
        Sampling{.name = "Presence", .temperature = 1.5f, .presence = 0.6f},
        Sampling{.name = "DraftModel", .temperature = 1.5f, .draft_model = true},
        Sampling{.name = "DraftModelTopP", .temperature = 2.0f, .top_p = 0.8f, .draft_model = true},
        Sampling{.name = "DraftModelTopK", .temperature = 2.0f, .top_k = 2, .draft_model = true}),
    [](const auto& info) { return std::string(info.param.name); });
#endif

}  // namespace
}  // namespace refrain::tests::speculation_statistics
