// Attention of prompts and of batches that hold them, at lengths and heads that FlashInfer's kernel
// takes: against double precision, and as a graph that is replayed with other lengths.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/ops.h"
#include "tests/ops/attention_case.h"

namespace refrain::kernels {
namespace {

class PrefillTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (!IsSkipped() && !launcher(stream()).hopper) GTEST_SKIP() << "this GPU is no Hopper";
  }

  void expect_right(AttentionCase& c, const std::vector<float>& out) {
    const auto expected = c.expected();
    expect_close(out, expected,
                 std::vector<double>(expected.size(), harness().attention_error(kBf16)), kBf16);
  }
  void check(HeadShape shape, std::vector<RowSpec> rows, int padded = 0) {
    SCOPED_TRACE(testing::Message()
                 << "heads " << shape.q_heads << "/" << shape.kv_heads << " of " << shape.head_dim
                 << ", block " << shape.block_size << ", " << rows.size() << " rows, the first of "
                 << rows[0].context << " + " << rows[0].query_len);
    AttentionCase c(harness(), shape, kBf16, std::move(rows), padded, 0, /*wide_rows=*/true);
    expect_right(c, c.run());
    ASSERT_TRUE(can_attend_flashinfer(stream(), c.args()));
  }
};

// Lengths around the edges of tiles of queries (128, 192) and of keys (96, 128).
TEST_P(PrefillTest, MatchesDoublePrecisionAtEveryEdgeOfATile) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t tokens : {17, 63, 95, 96, 97, 127, 128, 129, 191, 192, 193, 256, 257, 385}) {
      check({2, 1, dim, 16}, {{0, tokens}});
    }
    for (const int32_t context : {1, 15, 16, 31, 32, 63, 64, 95, 96, 97, 128, 129, 300, 511}) {
      check({2, 1, dim, 16}, {{context, 40}});
      check({2, 1, dim, 16}, {{context, 131}}, 3);
    }
  }
}

// Heads of a rank: Llama 1B, 8B, 8B on four GPUs, 70B on four, and groups that are no power of two.
TEST_P(PrefillTest, MatchesDoublePrecisionForTheHeadsOfModels) {
  check({32, 8, 64, 16}, {{0, 400}, {70, 33}});
  check({32, 8, 128, 16}, {{0, 300}, {131, 50}});
  check({8, 2, 128, 16}, {{0, 520}});
  check({16, 2, 128, 16}, {{250, 270}, {0, 20}}, 1);
  check({3, 3, 64, 16}, {{5, 200}});
  check({9, 3, 128, 16}, {{5, 200}});
  check({7, 1, 128, 16}, {{0, 140}});
  check({28, 4, 128, 16}, {{0, 140}});
  check({32, 1, 64, 16}, {{9, 77}});
}

TEST_P(PrefillTest, MatchesDoublePrecisionForEveryBlockSize) {
  for (const int32_t block : {1, 8, 16, 24, 32, 64, 128}) {
    check({4, 2, 64, block}, {{100, 40}, {0, 210}});
    check({4, 2, 128, block}, {{100, 40}, {0, 210}});
  }
}

// Prompts, parts of prompts after a cached prefix, and decoding rows, with padding behind them; so
// many that a block has several turns and that they do not fit one look of a warp.
TEST_P(PrefillTest, MatchesDoublePrecisionForRaggedBatches) {
  for (const int32_t dim : {64, 128}) {
    check({8, 2, dim, 16}, {{500, 1}, {0, 130}, {64, 1}, {320, 100}, {0, 1}, {48, 17}}, 5);
    check({8, 2, dim, 16}, {{0, 2}, {7, 4}, {30, 1}}, 2);  // none for the prefill kernel
    check({8, 2, dim, 16}, {{0, 3}}, 1);                   // nor can any be
    check({8, 2, dim, 16}, {{20, 5}});                     // as long as the batch
    check({8, 2, dim, 16}, {{0, 600}, {0, 1}});
    std::vector<RowSpec> rows;
    for (int32_t i = 0; i < 75; ++i)
      rows.push_back({i * 37 % 61, i % 3 == 0 ? 1 : 1 + i * 11 % 40});
    check({32, 8, dim, 16}, rows, 4);
    rows.assign(33, {40, 1});
    rows.back() = {10, 150};
    check({32, 8, dim, 16}, rows);
  }
}

// The launch shape follows from the padded counts alone: a graph recorded with one batch is right
// for another.
TEST_P(PrefillTest, AReplayedGraphTakesTheLengthsOfItsStep) {
  for (const int32_t dim : {64, 128}) {
    const HeadShape shape{8, 2, dim, 16};
    AttentionCase recorded(harness(), shape, kBf16, {{400, 1}, {0, 150}, {5, 9}}, 2, 0, true);
    AttentionCase step(harness(), shape, kBf16, {{30, 60}, {302, 99}, {77, 1}}, 2, 0, true);
    recorded.run();  // what a kernel needs once comes before the capture
    const cudaStream_t on = launcher(stream()).stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    const AttentionArgs args = recorded.args();
    check_cuda(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), "begin");
    table().attention(stream(), args);
    check_cuda(cudaStreamEndCapture(on, &graph), "end");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");

    const AttentionArgs& other = step.args();
    const auto copy = [&](const void* to, const void* from, size_t bytes) {
      check_cuda(cudaMemcpyAsync(const_cast<void*>(to), from, bytes, cudaMemcpyDefault, on),
                 "cudaMemcpyAsync");
    };
    ASSERT_EQ(args.tokens.padded, other.tokens.padded);
    ASSERT_EQ(args.max_blocks, other.max_blocks);
    ASSERT_EQ(recorded.cache_rows(), step.cache_rows());
    const auto reqs = static_cast<size_t>(args.reqs.padded);
    copy(args.inputs.query_start, other.inputs.query_start, (reqs + 1) * 4);
    copy(args.inputs.seq_lens, other.inputs.seq_lens, reqs * 4);
    copy(args.inputs.row_slot, other.inputs.row_slot, reqs * 4);
    copy(args.tokens.live, other.tokens.live, 4);
    copy(args.reqs.live, other.reqs.live, 4);
    copy(args.block_table, other.block_table, size_t{4} * 4 * args.max_blocks);
    copy(args.q.data, other.q.data, static_cast<size_t>(args.tokens.padded * args.q.stride) * 2);
    copy(args.cache, other.cache, static_cast<size_t>(step.cache_rows() * dim) * 2);
    check_cuda(cudaMemsetAsync(args.out.data, 0xff,
                               static_cast<size_t>(args.tokens.padded * args.out.stride) * 2, on),
               "cudaMemsetAsync");
    check_cuda(cudaGraphLaunch(executable, on), "cudaGraphLaunch");
    expect_right(step, recorded.output());
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

// The library's kernel and this project's own.
TEST_P(PrefillTest, PlainAttentionAgreesWithDoublePrecisionToo) {
  AttentionCase c(harness(), {8, 2, 128, 16}, kBf16, {{0, 200}, {50, 1}, {90, 70}}, 2, 0, true);
  expect_right(c, c.run(&KernelTable::plain_attention));
}

INSTANTIATE_TEST_SUITE_P(Device, PrefillTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
