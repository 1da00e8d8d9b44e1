// Kernels of --batch-invariant: a row's bits are the same whatever stands beside it and
// however many rows there are.
#include "kernels/cuda/invariant.h"

#include "kernels/cuda/launcher.h"
#include "tests/ops/attention_case.h"

namespace refrain::kernels {
namespace {

class InvariantTest : public OpsTest {};

TEST_P(InvariantTest, CG28RowsOfALinearDoNotDependOnTheirNumber) {
  constexpr int32_t kRows = 600;
  struct Shape {
    int64_t n, k;
    bool bias, residual;
    DType out;
  };
  for (const Shape& shape :
       {Shape{6144, 4096, false, false, kBf16}, Shape{4096, 4096, false, true, kBf16},
        Shape{1024, 14336, true, false, kBf16}, Shape{2048, 2048, false, false, DType::kFloat32},
        Shape{320, 192, false, false, kBf16}}) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    const Weight weight =
        put_weight(harness(), random_values(shape.n * shape.k, kBf16, 1), shape.n, shape.k, kBf16);
    const Matrix in =
        put_matrix(harness(), random_values(kRows * shape.k, kBf16, 2), kRows, shape.k, kBf16);
    LinearArgs args;
    args.in = in;
    args.weight = weight;
    if (shape.bias) args.bias = harness().put(random_values(shape.n, DType::kFloat32, 3));
    if (shape.residual)
      args.residual =
          put_matrix(harness(), random_values(kRows * shape.n, kBf16, 4), kRows, shape.n, kBf16);
    std::vector<float> expected;
    for (const int32_t rows : {kRows, 1, 2, 3, 8, 9, 16, 31, 64, 65, 100, 128, 129, 300, 513}) {
      args.out = fresh_matrix(harness(), kRows, shape.n, shape.out);
      args.rows = {rows, nullptr};
      invariant_cuda_kernel_table().linear(stream(), args);
      const auto got = get_matrix(harness(), args.out, rows, shape.n);
      if (expected.empty()) expected = got;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << rows << " rows";
    }
  }
}

// A token's attention is the same alone, in a batch, and anywhere in a chunk of its prompt.
TEST_P(InvariantTest, CG28ATokensAttentionDoesNotDependOnItsBatchOrChunk) {
  constexpr int32_t kPosition = 1700;
  for (const DType dtype : {kBf16, DType::kFloat32}) {
    for (const HeadShape shape : {HeadShape{8, 2, 64, 16}, {32, 8, 128, 16}, {4, 4, 32, 16}}) {
      SCOPED_TRACE(testing::Message() << shape.q_heads << "/" << shape.kv_heads << " of "
                                      << shape.head_dim << ", " << to_string(dtype));
      const auto token_of = [&](std::vector<RowSpec> rows, int padded) {
        const auto at = static_cast<std::ptrdiff_t>(kPosition - rows[0].context);
        AttentionCase c(harness(), shape, dtype, std::move(rows), padded, 0, true);
        const auto out = c.run_kernel(invariant_cuda_kernel_table().attention);
        const auto cols = static_cast<std::ptrdiff_t>(c.cols());
        return std::vector<float>(out.begin() + at * cols, out.begin() + (at + 1) * cols);
      };
      const auto alone = token_of({{kPosition, 1}}, 0);
      EXPECT_EQ(token_of({{kPosition, 1}, {30, 1}, {900, 1}}, 5), alone);
      EXPECT_EQ(token_of({{kPosition, 1}, {0, 200}, {77, 3}}, 0), alone);
      EXPECT_EQ(token_of({{kPosition - 50, 90}}, 0), alone);
      EXPECT_EQ(token_of({{kPosition - 130, 131}, {5, 1}}, 3), alone);
      EXPECT_EQ(token_of({{kPosition - 1700, 1760}}, 0), alone);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, InvariantTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
