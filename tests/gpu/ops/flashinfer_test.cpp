// The backend FLASHINFER: FlashInfer's batch kernel by a plan made on the host, against double
// precision; and as a graph of decodes that is replayed with the plan of another step.
#include "kernels/core/attention_units.h"
#include "kernels/cuda/launcher.h"
#include "tests/gpu/ops/captured.h"
#include "tests/ops/attention_case.h"

namespace refrain::kernels {
namespace {

constexpr auto kKernel = &KernelTable::flashinfer_attention;

class FlashinferTest : public OpsTest {
 protected:
  void expect_right(AttentionCase& c, const std::vector<float>& out) {
    const auto expected = c.expected();
    expect_close(out, expected,
                 std::vector<double>(expected.size(), harness().attention_error(kBf16)), kBf16);
  }
  void check(HeadShape shape, std::vector<RowSpec> rows, int padded = 0, int32_t window = 0,
             bool known = true) {
    SCOPED_TRACE(testing::Message()
                 << "heads " << shape.q_heads << "/" << shape.kv_heads << " of " << shape.head_dim
                 << ", block " << shape.block_size << ", " << rows.size() << " rows, the first of "
                 << rows[0].context << " + " << rows[0].query_len << ", window " << window);
    AttentionCase c(harness(), shape, kBf16, std::move(rows), padded, window, /*wide_rows=*/true);
    c.make_plan(1, known, false, /*flashinfer=*/true);
    expect_right(c, c.run(kKernel));
  }
};

TEST_P(FlashinferTest, DecodesMatchDoublePrecisionForTheHeadsOfModels) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t group : {1, 3, 4, 7, 8, 32}) {
      check({2 * group, 2, dim, 16}, {{700, 1}, {1, 1}, {64, 1}, {129, 1}});
      check({2 * group, 2, dim, 16}, {{700, 1}, {1, 1}, {64, 1}, {129, 1}}, 4);
    }
    check({32, 8, dim, 16}, std::vector<RowSpec>(90, RowSpec{257, 1}), 6);
  }
}

TEST_P(FlashinferTest, PromptsAndRaggedBatchesMatchDoublePrecision) {
  for (const int32_t dim : {64, 128}) {
    check({8, 2, dim, 16}, {{0, 130}});
    check({8, 2, dim, 16}, {{500, 1}, {0, 130}, {64, 1}, {320, 100}, {0, 1}, {48, 17}}, 5);
    check({32, 8, dim, 16}, {{0, 300}, {131, 50}});
    for (const int32_t block : {8, 16, 32, 64}) check({4, 2, dim, block}, {{100, 40}, {0, 210}});
  }
}

TEST_P(FlashinferTest, KeepsToTheSlidingWindow) {
  for (const int32_t window : {16, 100, 300}) {
    check({8, 2, 64, 16}, {{450, 1}, {20, 1}, {99, 1}}, 1, window);
    check({8, 2, 64, 16}, {{450, 3}, {0, 90}, {99, 1}}, 0, window);
  }
}

TEST_P(FlashinferTest, TakesRowsWhoseLengthOnlyTheDeviceKnows) {
  check({8, 2, 64, 16}, {{450, 1}, {20, 1}}, 1, 0, false);
  check({8, 2, 64, 16}, {{450, 3}, {20, 2}}, 1, 0, false);
}

// The launch shape follows from the padded counts alone, what is computed from the plan.
TEST_P(FlashinferTest, AReplayedGraphTakesThePlanOfItsStep) {
  const HeadShape shape{8, 2, 128, 16};
  AttentionCase recorded(harness(), shape, kBf16, {{1, 1}, {2, 1}, {3, 1}}, 1, 0, true);
  AttentionCase step(harness(), shape, kBf16, {{3000, 1}, {200, 1}, {77, 1}}, 1, 0, true);
  recorded.make_plan(1, true, false, true);
  step.make_plan(1, true, false, true);
  recorded.run(kKernel);  // what a kernel needs once comes before the capture
  step.run(kKernel);
  AttentionArgs args = step.args();
  const auto plan =
      harness().get(args.planned.plan, static_cast<size_t>(args.planned.shape.ints()));
  const auto small = harness().get(recorded.args().planned.plan,
                                   static_cast<size_t>(recorded.args().planned.shape.ints()));
  const cudaStream_t on = launcher(stream()).stream;
  const auto put = [&](const std::vector<int32_t>& from) {
    check_cuda(cudaMemcpyAsync(const_cast<int32_t*>(args.planned.plan), from.data(),
                               from.size() * sizeof(int32_t), cudaMemcpyDefault, on),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(on), "cudaStreamSynchronize");
  };
  ASSERT_EQ(plan.size(), small.size());
  put(small);
  Captured graph(stream(), [&] { (table().*kKernel)(stream(), args); });
  put(plan);
  graph.replay();
  expect_right(step, step.output());
}

INSTANTIATE_TEST_SUITE_P(Device, FlashinferTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
