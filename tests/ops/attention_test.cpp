// attention against double precision; invariance over batch, chunking and phase; inert padding.
#include "tests/ops/attention_case.h"

namespace refrain::kernels {
namespace {

class AttentionTest : public OpsTest {
 protected:
  void check(HeadShape shape, DType dtype, std::vector<RowSpec> rows, int padded = 0,
             int32_t window = 0) {
    SCOPED_TRACE(testing::Message() << "heads " << shape.q_heads << "/" << shape.kv_heads << " of "
                                    << shape.head_dim << ", block " << shape.block_size << ", "
                                    << to_string(dtype) << ", window " << window);
    AttentionCase c(harness(), shape, dtype, std::move(rows), padded, window);
    const auto expected = c.expected();
    expect_close(c.run(), expected,
                 std::vector<double>(expected.size(), harness().attention_error(dtype)), dtype);
  }
};

TEST_P(AttentionTest, MatchesDoublePrecisionForEveryHeadShape) {
  for (const DType dtype : kFloatTypes) {
    for (const int32_t dim : {8, 32, 40, 64, 80, 128}) {
      check({3, 3, dim, 16}, dtype, {{0, 1}, {20, 1}, {70, 3}});
    }
    for (const int32_t group : {1, 3, 4, 8}) {
      check({2 * group, 2, 32, 16}, dtype, {{130, 1}, {0, 37}, {61, 5}});
    }
    check({64, 1, 16, 16}, dtype, {{66, 2}});
  }
}

TEST_P(AttentionTest, TakesAnyBlockSize) {
  for (const int32_t block : {1, 8, 16, 24, 32, 64, 128}) {
    check({3, 1, 64, block}, DType::kFloat32, {{100, 1}, {0, 70}});
  }
}

TEST_P(AttentionTest, KeepsToTheSlidingWindow) {
  for (const int32_t window : {1, 7, 64, 100}) {
    check({4, 2, 32, 16}, DType::kFloat32, {{150, 1}, {0, 90}, {63, 20}}, 0, window);
  }
}

// CG-27: NaN in padded tokens, in the reserved block and in unwritten cache reaches no live row.
TEST_P(AttentionTest, GivesPaddedTokensZerosAndTheirPoisonReachesNoLiveRow) {
  check({6, 2, 64, 16}, DType::kBFloat16, {{33, 1}, {0, 19}}, 5);
}

// CG-28: bitwise.
TEST_P(AttentionTest, GivesATokenTheSameBitsHoweverItsPromptWasChunked) {
  const HeadShape shapes[] = {{9, 3, 64, 16}, {4, 4, 40, 8}};
  for (const HeadShape& shape : shapes) {
    for (const DType dtype : kFloatTypes) {
      for (const int32_t window : {0, 21}) {
        const int32_t length = 150;
        AttentionCase whole(harness(), shape, dtype, {{0, length}}, 0, window);
        const auto all = whole.run();
        const int64_t cols = whole.cols();
        for (const int32_t chunk : {1, 5, 16, 37, 64, 100}) {
          for (int32_t begin = 0; begin < length; begin += std::max(chunk, 11)) {
            const int32_t count = std::min(chunk, length - begin);
            AttentionCase part(harness(), shape, dtype, {{begin, count}}, 0, window);
            expect_same_across_keys(
                harness(), part.run(),
                {all.begin() + begin * cols, all.begin() + (begin + count) * cols});
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, GivesARowTheSameBitsInEveryBatch) {
  const HeadShape shape{9, 3, 64, 16};
  AttentionCase alone(harness(), shape, DType::kBFloat16, {{83, 1}});
  const auto bits = alone.run();
  for (int others = 1; others < 9; ++others) {
    std::vector<RowSpec> rows = {{83, 1}};  // request 0 draws the same values in every case
    for (int i = 0; i < others; ++i) rows.push_back({i * 17, i % 3 + 1});
    AttentionCase batch(harness(), shape, DType::kBFloat16, rows, others % 3);
    auto out = batch.run();
    out.resize(bits.size());
    expect_same_across_keys(harness(), out, bits);
  }
}

// Enough keys for every way of sharing them out among the parts of a device; odd numbers of them.
TEST_P(AttentionTest, MatchesDoublePrecisionForEveryContextOfASingleTokenDecode) {
  for (const int32_t dim : {32, 64, 80, 96, 128}) {
    for (const int32_t context : {0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 255}) {
      check({8, 2, dim, 16}, DType::kBFloat16, {{context, 1}});
    }
    check({8, 2, dim, 16}, DType::kBFloat16, {{255, 1}, {0, 1}, {77, 1}, {190, 1}}, 4);
    check({8, 8, dim, 16}, DType::kBFloat16, {{255, 1}, {9, 1}}, 0, 40);
    check({16, 1, dim, 32}, DType::kBFloat16, {{3, 250}, {200, 1}, {0, 17}}, 3);
  }
}

// So many requests and heads that a device shares them out by keys: of several lengths, some not
// decoding, with padded rows behind them.
TEST_P(AttentionTest, MatchesDoublePrecisionForManyRequests) {
  std::vector<RowSpec> rows;
  for (int32_t i = 0; i < 130; ++i) rows.push_back({i * 37 % 41, 1});
  rows[99] = {200, 1};
  for (const int32_t dim : {32, 80, 128}) check({16, 8, dim, 16}, DType::kBFloat16, rows, 3);
  rows[0] = {0, 40}, rows[5] = {30, 20}, rows[33] = {7, 3}, rows[129] = {100, 1};
  check({8, 8, 64, 24}, DType::kBFloat16, rows, 1);
  check({16, 8, 96, 8}, DType::kBFloat16, rows, 0, 17);
}

INSTANTIATE_TEST_SUITE_P(Device, AttentionTest, testing::ValuesIn(all_harnesses()), choice_name);

TEST(AttentionHost, GivesTheSameBitsForEveryNumberOfThreads) {
  for (const HarnessChoice& choice : host_harnesses()) {
    std::vector<float> one;
    for (const int threads : {1, 2, 3, 8}) {
      const auto harness = make_host_harness(*parse_host_isa(choice.name.substr(5)), threads);
      AttentionCase c(*harness, {9, 3, 64, 16}, DType::kBFloat16, {{83, 1}, {0, 40}, {90, 1}}, 2);
      const auto out = c.run();
      if (threads == 1) one = out;
      expect_same_bits(out, one);
    }
  }
}

}  // namespace
}  // namespace refrain::kernels
