// pool: one vector a prompt, whatever its chunks and the rows beside it; against double precision.
#include <cmath>

#include "kernels/core/pool_args.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kPoolSlots = 4, kPoolTokens = 40, kPoolReqs = 4;

struct PromptPart {  // of one prompt: its row in a step with others
  int32_t begin, end;
};

class PoolTest : public OpsTest {
 protected:
  // Two runs over rows of slots 2, 0 and 1: the prompt of slot 0 has its chunks in both, or is
  // whole in the second. A row in front of it and one behind it keep it away from the borders.
  std::vector<float> pool_prompt(const std::vector<float>& prompt,
                                 const std::vector<PromptPart>& chunks, int64_t cols, DType dtype,
                                 Pooling pooling) {
    float* state = harness().fresh<float>((kPoolSlots + 1) * cols);
    PoolArgs args;
    args.pooling = pooling;
    args.cols = static_cast<int32_t>(cols);
    args.state = pooling == Pooling::kLast ? nullptr : state;
    for (PoolOutputs& out : args.outputs)
      out = {harness().fresh<uint32_t>(1), harness().fresh<float>(kPoolReqs * cols)};
    uint32_t turn = 6;
    for (const PromptPart& chunk : chunks) {
      const int32_t count = chunk.end - chunk.begin;
      const bool ends = chunk.end * cols == std::ssize(prompt);
      const auto others = random_values(kPoolTokens * cols, dtype, ++turn);
      std::vector<float> in = others;
      std::copy(prompt.begin() + chunk.begin * cols, prompt.begin() + chunk.end * cols,
                in.begin() + 3 * cols);
      const std::vector<int32_t> starts = {0, 3, 3 + count, 5 + count, 5 + count};
      args.in = put_matrix(harness(), in, kPoolTokens, cols, dtype, 2);
      args.inputs.turn = harness().put(std::vector<uint32_t>{turn});
      args.inputs.query_start = harness().put(starts);
      args.inputs.seq_lens = harness().put(std::vector<int32_t>{3, chunk.end, 2, 99});
      args.inputs.row_slot = harness().put(std::vector<int32_t>{2, 0, 1, kPoolSlots});
      const uint8_t samples = kRowSamples;
      args.inputs.row_flags =
          harness().put(std::vector<uint8_t>{samples, ends ? samples : uint8_t{0}, 0, samples});
      args.reqs = {kPoolReqs, put_int(harness(), 3)};
      table().pool(stream(), args);
      const PoolOutputs& out = args.outputs[turn % kTurns];
      EXPECT_EQ(harness().get(out.turn, 1).front(), turn);
      const auto pooled = harness().get(out.pooled, kPoolReqs * cols);
      EXPECT_TRUE(std::isnan(pooled[2 * cols])) << "a prompt that goes on has no vector yet";
      EXPECT_TRUE(std::isnan(pooled[3 * cols])) << "nor has a padded row";
      if (ends) return {pooled.begin() + cols, pooled.begin() + 2 * cols};
      EXPECT_TRUE(std::isnan(pooled[cols]));
    }
    return {};
  }
};

std::vector<double> pooled_exactly(const std::vector<float>& prompt, int64_t cols,
                                   Pooling pooling) {
  const int64_t length = std::ssize(prompt) / cols;
  std::vector<double> vector(static_cast<size_t>(cols));
  for (int64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (int64_t t = 0; t < length; ++t) sum += prompt[t * cols + c];
    const int64_t row = pooling == Pooling::kLast ? length - 1 : 0;
    vector[c] = pooling == Pooling::kMean ? sum / static_cast<double>(length)
                                          : double{prompt[row * cols + c]};
  }
  return vector;
}

TEST_P(PoolTest, GivesTheLastTheMeanAndTheFirstOfThePromptWhateverItsChunks) {
  constexpr int32_t kLength = 23;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : {1, 31, 200}) {
      const auto prompt = random_values(kLength * cols, dtype, 1);
      for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kFirst}) {
        const auto whole = pool_prompt(prompt, {{0, kLength}}, cols, dtype, pooling);
        const std::vector<double> tolerance(static_cast<size_t>(cols), 2e-6);
        expect_close(whole, pooled_exactly(prompt, cols, pooling), tolerance, DType::kFloat32);
        for (const std::vector<PromptPart>& chunks :
             {std::vector<PromptPart>{{0, 1}, {1, 22}, {22, kLength}}, {{0, 16}, {16, kLength}}}) {
          expect_same_bits(pool_prompt(prompt, chunks, cols, dtype, pooling), whole);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, PoolTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
