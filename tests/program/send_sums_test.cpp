#include <gtest/gtest.h>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

// What a linear's kernel makes of a sum over ranks goes to them from there, where that kernel takes
// the shares: of all ranks, or of none.
TEST(SendSums, LinearsSendTheirPartOfASum) {
  ModelConfig config = aligned(tiny_llama());
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 48;
  const kernels::FewRows device = few_rows_device();
  const auto sends = [&](int32_t rows, int rank, int size) {
    int of_linears = 0, sums = 0;
    const Program program =
        lower_some_rows(add_residuals(*shard(fuse(build(config, DType::kBFloat16)), rank, size)),
                        device, rows, true);
    for (size_t i = 1; i < program.ops.size(); ++i) {
      const auto* sum = std::get_if<AllReduceAddRmsNormOp>(&program.ops[i]);
      const auto* linear = std::get_if<FusedLinearOp>(&program.ops[i - 1]);
      const bool sent = linear != nullptr && linear->sends;
      of_linears += sent;
      if (sum == nullptr) {
        EXPECT_FALSE(sent) << print(program, program.ops[i]);
        continue;
      }
      ++sums;
      EXPECT_EQ(sum->sent, sent) << print(program, *sum);
      if (sent) {
        EXPECT_EQ(sum->delta, linear->out);
      }
    }
    EXPECT_EQ(sums, size == 1 ? 0 : 4) << print(program);
    return of_linears;
  };
  for (const int64_t intermediate : {80, 384, 392, 448}) {
    config.intermediate_size = intermediate;
    for (const int rank : {0, 1}) {
      EXPECT_EQ(sends(64, rank, 2), intermediate == 384 ? 4 : 2) << intermediate;
      EXPECT_EQ(sends(device.max_plain_rows + 1, rank, 2), 0);
    }
    EXPECT_EQ(sends(64, 0, 1), 0);
  }
}

}  // namespace
}  // namespace refrain::worker::test
