// Where the blocks of a stream of weights lie: one a multiprocessor, also while blocks of other
// kernels are there. Two on one left others idle and took twice the time (docs/gpu-results.md).
#include <cuda_runtime.h>

#include <set>

#include "kernels/cuda/launcher.h"
#include "tests/gpu/ops/placement_probe.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

class Placement : public OpsTest {
 protected:
  cudaStream_t native() { return launcher(stream()).stream; }

  // The kernel nodes of what `record` launches.
  template <class Record>
  std::vector<cudaKernelNodeParams> captured(Record record) {
    check_cuda(cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal), "begin capture");
    record();
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(native(), &graph), "end capture");
    graphs_.push_back(graph);
    size_t count = 0;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
    std::vector<cudaKernelNodeParams> found;
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      check_cuda(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      if (type != cudaGraphNodeTypeKernel) continue;
      found.emplace_back();
      check_cuda(cudaGraphKernelNodeGetParams(node, &found.back()), "cudaGraphKernelNodeGetParams");
    }
    return found;
  }
  void TearDown() override {
    for (cudaGraph_t graph : graphs_) cudaGraphDestroy(graph);
  }

  FusedLinearArgs fused(int32_t rows, int64_t n, int64_t k, bool norm, bool silu) {
    FusedLinearArgs args;
    args.linear.in = fresh_matrix(harness(), rows, k, DType::kBFloat16);
    args.linear.weight.data = harness().allocate(static_cast<size_t>(n * k * 2));
    args.linear.weight.dtype = DType::kBFloat16;
    args.linear.weight.n = n;
    args.linear.weight.k = k;
    args.linear.out = fresh_matrix(harness(), rows, silu ? n / 2 : n, DType::kBFloat16);
    args.linear.rows = {rows, put_int(harness(), rows)};
    if (norm) args.norm = harness().fresh<float>(static_cast<size_t>(k));
    args.silu_mul = silu;
    return args;
  }

 private:
  std::vector<cudaGraph_t> graphs_;
};

TEST_P(Placement, FusedLinearsHaveOneBlockAMultiprocessor) {
  const int sms = launcher(stream()).sm_count;
  struct Shape {
    int64_t n, k;
    bool norm, silu;
  };
  // Of 8B and 1B, whole and halved: qkv, o, gate_up, down, lm_head.
  for (const Shape s : {Shape{6144, 4096, true, false},
                        {4096, 4096, false, false},
                        {28672, 4096, true, true},
                        {4096, 14336, false, false},
                        {128256, 4096, true, false},
                        {3072, 2048, true, false},
                        {2048, 8192, false, false},
                        {3072, 4096, true, false},
                        {4096, 2048, false, false},
                        {4096, 7168, false, false}}) {
    for (const int32_t rows : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << s.n << " x " << s.k);
      const auto args = fused(rows, s.n, s.k, s.norm, s.silu);
      const auto nodes = captured([&] { table().fused_linear(stream(), args); });
      ASSERT_EQ(nodes.size(), 1u);
      const auto& node = nodes[0];
      EXPECT_LE(node.gridDim.x, static_cast<unsigned>(sms));
      int blocks = 0;
      check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                     &blocks, node.func, static_cast<int>(node.blockDim.x), node.sharedMemBytes),
                 "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      EXPECT_EQ(blocks, 1);
      // The same, seen: blocks of that shape beside small blocks of another kernel.
      const auto ids = probe_placement(native(), node.gridDim.x, node.blockDim.x,
                                       node.sharedMemBytes, static_cast<unsigned>(sms));
      EXPECT_EQ(std::set<uint32_t>(ids.begin(), ids.end()).size(), node.gridDim.x);
    }
  }
}

// What the test above rests on: with less than half of the memory two do share a multiprocessor.
TEST_P(Placement, SmallerBlocksShareMultiprocessors) {
  const auto sms = static_cast<unsigned>(launcher(stream()).sm_count);
  const auto ids = probe_placement(native(), sms * 2, 256, size_t{92} * 1024, sms);
  EXPECT_LE(std::set<uint32_t>(ids.begin(), ids.end()).size(), sms);
}

INSTANTIATE_TEST_SUITE_P(Device, Placement, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
