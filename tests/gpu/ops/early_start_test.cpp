// P-7: attention and sampling read what prepare_inputs wrote before their predecessor has ended,
// because a linear stands between. The library's kernels are launched without leave to start early,
// so that they begin when all before them have ended, whether or not they let their successor go.
#include <algorithm>

#include "tests/gpu/ops/captured.h"

namespace refrain::kernels {
namespace {

class EarlyStart : public OpsTest {};

TEST_P(EarlyStart, P7ALinearOfTheLibraryBeginsWhenAllBeforeItHaveEnded) {
  constexpr int64_t kCols = 1024;
  for (const int32_t rows : {128, 300, 2048}) {
    SCOPED_TRACE(rows);
    LinearArgs linear;
    linear.in = fresh_matrix(harness(), rows, kCols, DType::kBFloat16);
    linear.weight = put_weight(harness(), random_values(kCols * kCols, DType::kBFloat16, 1), kCols,
                               kCols, DType::kBFloat16);
    linear.out = fresh_matrix(harness(), rows, kCols, DType::kBFloat16);
    linear.rows = {rows, put_int(harness(), rows)};
    const AddArgs add{linear.in, linear.in, linear.in, kCols, linear.rows};
    const AddArgs last{linear.out, linear.out, linear.out, kCols, linear.rows};
    const auto run = [&] {
      table().add(stream(), add);
      table().linear(stream(), linear);
      table().add(stream(), last);
    };
    run();
    Captured captured(stream(), run);
    size_t count = 0;
    check_cuda(cudaGraphGetEdges(captured.graph(), nullptr, nullptr, nullptr, &count), "edges");
    std::vector<cudaGraphNode_t> from(count), to(count);
    std::vector<cudaGraphEdgeData> data(count);
    check_cuda(cudaGraphGetEdges(captured.graph(), from.data(), to.data(), data.data(), &count),
               "edges");
    ASSERT_GE(count, 2u) << "add, what the linear launches, add: a chain";
    size_t early = 0;
    for (size_t i = 0; i < count; ++i) {
      // The first node has no edge to it, the last none from it.
      const bool is_last = std::find(from.begin(), from.end(), to[i]) == from.end();
      if (data[i].type == cudaGraphDependencyTypeProgrammatic) ++early;
      if (is_last) continue;
      EXPECT_EQ(data[i].type, cudaGraphDependencyTypeDefault) << "edge " << i << " of " << count;
      EXPECT_EQ(data[i].from_port, cudaGraphKernelNodePortDefault);
    }
    EXPECT_EQ(early, 1u) << "our own kernel after it may start early";
  }
}

INSTANTIATE_TEST_SUITE_P(Device, EarlyStart, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
