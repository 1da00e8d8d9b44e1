// best_tokens on each rank's part of the vocabulary, then sample: a plainly greedy row takes the
// token that it would take from all logits, and never looks at them.
#include <cmath>
#include <random>

#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

class BestTokensTest : public OpsTest {
 protected:
  // logits: [rows][vocab]. The tokens of a step whose ranks hold `cols` columns each.
  std::vector<int32_t> tokens(const std::vector<float>& logits, int32_t rows, int32_t vocab,
                              int32_t shards, int32_t live) {
    const int32_t cols = (vocab + shards - 1) / shards;
    const std::vector<SlotParams> params(static_cast<size_t>(rows) + 1,
                                         SlotParams{.temperature = 0});
    SampleArgs sample;
    std::vector<int32_t> slots(static_cast<size_t>(rows));
    std::iota(slots.begin(), slots.end(), 0);
    sample.inputs.row_slot = harness().put(slots);
    sample.inputs.row_flags =
        harness().put(std::vector<uint8_t>(static_cast<size_t>(rows), kRowSamples));
    sample.inputs.seq_lens = harness().put(std::vector<int32_t>(static_cast<size_t>(rows), 10));
    sample.inputs.turn = harness().put(std::vector<uint32_t>{4});
    sample.slots.num_slots = rows;
    sample.slots.vocab_size = vocab;
    sample.slots.params = harness().put(params);
    sample.slots.last_token = harness().fresh<int32_t>(static_cast<size_t>(rows) + 1);
    sample.rows = {rows, put_int(harness(), live)};
    const auto floats_of_rank = static_cast<size_t>(rows * kBestParts * 2);
    std::vector<float> gathered;
    for (int32_t shard = 0; shard < shards; ++shard) {
      const int32_t first = shard * cols, count = std::max(0, std::min(cols, vocab - first));
      std::vector<float> part(static_cast<size_t>(rows * cols), 1000.0f);  // padding is no token
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < count; ++t) part[r * cols + t] = logits[r * vocab + first + t];
      }
      BestTokensArgs best;
      best.logits = {harness().put(part), DType::kFloat32, cols};
      best.first_token = std::min(first, vocab);
      best.num_tokens = count;
      best.best = harness().fresh<float>(floats_of_rank);
      best.inputs = sample.inputs;
      best.params = sample.slots.params;
      best.rows = sample.rows;
      table().best_tokens(stream(), best);
      const std::vector<float> got = harness().get(best.best, floats_of_rank);
      gathered.insert(gathered.end(), got.begin(), got.end());
      for (size_t i = static_cast<size_t>(live) * kBestParts * 2; i < got.size(); ++i) {
        EXPECT_TRUE(std::isnan(got[i])) << "padded rows stay as they are";
      }
    }
    sample.best = harness().put(gathered);
    sample.best_parts = kBestParts;
    sample.logits = harness().fresh<float>(static_cast<size_t>(shards * rows * cols));  // poison
    sample.shards = shards;
    sample.shard_cols = cols;
    sample.shard_stride = int64_t{rows} * cols;
    sample.vocab_size = vocab;
    for (SampleOutputs& out : sample.outputs) {
      out.turn = harness().fresh<uint32_t>(1);
      out.tokens = harness().fresh<int32_t>(rows);
      out.logprobs = harness().fresh<float>(rows);
      out.top_tokens = harness().fresh<int32_t>(rows * kMaxLogprobs);
      out.top_logprobs = harness().fresh<float>(rows * kMaxLogprobs);
    }
    sample.scratch = harness().fresh<float>(static_cast<size_t>(rows * vocab));
    table().sample(stream(), sample);
    const auto last = harness().get(sample.slots.last_token, rows);
    const auto found = harness().get(sample.outputs[0].tokens, rows);
    for (int32_t r = 0; r < live; ++r) EXPECT_EQ(last[r], found[r]);
    return found;
  }
};

int32_t highest(const float* logits, int32_t vocab) {
  int32_t best = -1;
  for (int32_t t = 0; t < vocab; ++t) {
    if (logits[t] > (best < 0 ? -kInfinity : logits[best])) best = t;
  }
  return best;
}

TEST_P(BestTokensTest, ARowTakesTheTokenThatAllLogitsWouldGive) {
  struct Shape {
    int32_t rows, vocab, shards, live;
  };
  std::mt19937 random(3);
  for (const Shape& s : {Shape{1, 100, 2, 1}, Shape{4, 1001, 3, 3}, Shape{40, 5003, 2, 40},
                         Shape{17, 20000, 4, 16}, Shape{3, 37, 2, 2}}) {
    std::uniform_int_distribution<int> value(-40, 40);  // many ties
    std::vector<float> logits(static_cast<size_t>(s.rows * s.vocab));
    for (float& x : logits) x = static_cast<float>(value(random));
    const std::vector<int32_t> got = tokens(logits, s.rows, s.vocab, s.shards, s.live);
    for (int32_t r = 0; r < s.rows; ++r) {
      EXPECT_EQ(got[r], r < s.live ? highest(logits.data() + r * s.vocab, s.vocab) : -1)
          << s.rows << " rows of " << s.vocab << " over " << s.shards << ", row " << r;
    }
  }
}

TEST_P(BestTokensTest, ATieBetweenRanksGoesToTheLowerToken) {
  std::vector<float> logits(64, -1.0f);
  logits[40] = logits[20] = logits[63] = 5.0f;
  EXPECT_EQ(tokens(logits, 1, 64, 2, 1)[0], 20);
  EXPECT_EQ(tokens(logits, 1, 64, 4, 1)[0], 20);
}

TEST_P(BestTokensTest, NaNNeverWinsAndARowWithoutANumberGivesMinusOne) {
  std::vector<float> logits(3 * 100, std::nanf(""));
  std::fill(logits.begin() + 100, logits.begin() + 200, -kInfinity);
  logits[2 * 100 + 77] = -3.0f;
  EXPECT_EQ(tokens(logits, 3, 100, 2, 3), (std::vector<int32_t>{-1, -1, 77}));
}

INSTANTIATE_TEST_SUITE_P(Device, BestTokensTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
