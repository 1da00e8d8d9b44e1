// score_tokens against double precision: log-probability and rank of the given token, and the
// likeliest ones.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

struct Scores {
  std::vector<float> logprobs, top_logprobs;
  std::vector<int32_t> ranks, top_tokens;
};

class ScoreTokensTest : public OpsTest {
 protected:
  // logits: [rows][vocab], spread over shards whose padding must not count.
  Scores score(const std::vector<float>& logits, int32_t vocab, int32_t shards,
               const std::vector<int32_t>& tokens, const std::vector<int32_t>& num_top) {
    const auto rows = static_cast<int32_t>(tokens.size());
    const int32_t cols = (vocab + shards - 1) / shards;
    std::vector<float> spread(static_cast<size_t>(shards * rows * cols), 1000.0f);
    for (int32_t row = 0; row < rows; ++row)
      for (int32_t t = 0; t < vocab; ++t)
        spread[static_cast<size_t>((t / cols * rows + row) * cols + t % cols)] =
            logits[static_cast<size_t>(row * vocab + t)];
    ScoreTokensArgs args;
    args.logits = harness().put(spread);
    args.shards = shards;
    args.shard_cols = cols;
    args.shard_stride = int64_t{rows} * cols;
    args.vocab_size = vocab;
    args.tokens = harness().put(tokens);
    args.num_top = harness().put(num_top);
    args.rows = rows;
    const auto count = static_cast<size_t>(rows), tops = count * kMaxLogprobs;
    args.outputs.logprobs = harness().fresh<float>(count);
    args.outputs.ranks = harness().fresh<int32_t>(count);
    args.outputs.top_tokens = harness().fresh<int32_t>(tops);
    args.outputs.top_logprobs = harness().fresh<float>(tops);
    table().score_tokens(stream(), args);
    return {harness().get(args.outputs.logprobs, count),
            harness().get(args.outputs.top_logprobs, tops),
            harness().get(args.outputs.ranks, count), harness().get(args.outputs.top_tokens, tops)};
  }
};

TEST_P(ScoreTokensTest, ATokensLogprobRankAndTheLikeliestAreThoseOfTheRow) {
  struct Shape {
    int32_t rows, vocab, shards;
  };
  std::mt19937 random(7);
  for (const Shape& s : {Shape{1, 100, 1}, Shape{5, 1001, 3}, Shape{9, 5003, 2}, Shape{64, 301, 4},
                         Shape{3, 37, 2}, Shape{2, 7, 1}}) {
    std::normal_distribution<float> value(0, 4);
    std::vector<float> logits(static_cast<size_t>(s.rows * s.vocab));
    for (float& x : logits) x = value(random);
    std::vector<int32_t> tokens, num_top;
    for (int32_t row = 0; row < s.rows; ++row) {
      tokens.push_back(row == 2 ? -1
                                : static_cast<int32_t>(random() % static_cast<unsigned>(s.vocab)));
      num_top.push_back(row % (kMaxLogprobs + 1));
    }
    const Scores got = score(logits, s.vocab, s.shards, tokens, num_top);
    for (int32_t row = 0; row < s.rows; ++row) {
      if (tokens[row] < 0) continue;
      const float* x = logits.data() + row * s.vocab;
      double sum = 0;
      for (int32_t t = 0; t < s.vocab; ++t) sum += std::exp(static_cast<double>(x[t]));
      const double log_sum = std::log(sum);
      EXPECT_NEAR(got.logprobs[row], x[tokens[row]] - log_sum, 2e-5) << "row " << row;
      EXPECT_EQ(got.ranks[row],
                std::count_if(x, x + s.vocab, [&](float y) { return y >= x[tokens[row]]; }));
      std::vector<int32_t> order(static_cast<size_t>(s.vocab));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
      for (int32_t i = 0; i < kMaxLogprobs; ++i) {
        const bool has = i < std::min(num_top[row], s.vocab);
        EXPECT_EQ(got.top_tokens[row * kMaxLogprobs + i], has ? order[static_cast<size_t>(i)] : -1)
            << "row " << row << " of " << s.rows << ", place " << i;
        EXPECT_NEAR(got.top_logprobs[row * kMaxLogprobs + i],
                    has ? x[order[static_cast<size_t>(i)]] - log_sum : 0, 2e-5);
      }
    }
  }
}

TEST_P(ScoreTokensTest, OfEqualTokensTheLowerComesFirstAndAllOfThemCountForTheRank) {
  std::vector<float> logits(64, -1.0f);
  logits[40] = logits[20] = logits[63] = 5.0f;
  const Scores got = score(logits, 64, 2, {40}, {4});
  EXPECT_EQ(got.ranks[0], 3);
  EXPECT_EQ(std::vector<int32_t>(got.top_tokens.begin(), got.top_tokens.begin() + 4),
            (std::vector<int32_t>{20, 40, 63, 0}));
}

TEST_P(ScoreTokensTest, ForbiddenTokensHaveMinusInfinityAndARowWithoutNumbersNaN) {
  std::vector<float> logits(2 * 50, std::nanf(""));
  std::fill(logits.begin(), logits.begin() + 50, -kInfinity);
  logits[7] = 2.0f;
  const Scores got = score(logits, 50, 1, {9, 9}, {1, 1});
  EXPECT_EQ(got.logprobs[0], -kInfinity);
  EXPECT_EQ(got.top_tokens[0], 7);
  EXPECT_EQ(got.top_logprobs[0], 0.0f);
  EXPECT_TRUE(std::isnan(got.logprobs[1]));
  EXPECT_EQ(got.top_tokens[kMaxLogprobs], -1);
}

INSTANTIATE_TEST_SUITE_P(Device, ScoreTokensTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
