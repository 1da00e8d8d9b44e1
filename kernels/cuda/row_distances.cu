// row_distances: a block a row, eight columns a thread at a time; every value is read once, nothing
// but two words a row is written. Bound by memory where rows are many; one row of logits takes a
// block about a tenth of a millisecond. For audits.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    row_distances_kernel(const __grid_constant__ RowDistancesArgs args, bool wide) {
  __shared__ DistanceBits shared[kThreads / 32];
  wait_for_predecessor();
  let_successor_start();
  const int64_t row = blockIdx.x;
  if (row >= live_rows(args.rows)) return;
  DistanceBits mine;
  for (int32_t c = static_cast<int32_t>(threadIdx.x) * 8; c < args.cols; c += kThreads * 8) {
    float got[8], expected[8];
    load8(args.got, wide, row, c, args.cols - c, got);
    load8(args.expected, wide, row, c, args.cols - c, expected);
#pragma unroll
    for (int i = 0; i < 8; ++i) mine.add(got[i], expected[i]);
  }
  mine = {__reduce_max_sync(~0u, mine.apart), __reduce_max_sync(~0u, mine.largest)};
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : DistanceBits{};
  mine = {__reduce_max_sync(~0u, mine.apart), __reduce_max_sync(~0u, mine.largest)};
  if (threadIdx.x == 0) args.out[row] = mine.value();
}

}  // namespace

void row_distances(StreamRef stream, const RowDistancesArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.rows.padded));
  shape.threads = kThreads;
  launch<&row_distances_kernel>(stream, "row_distances", shape, args,
                                rows_are_wide(args.got) && rows_are_wide(args.expected));
}

}  // namespace refrain::kernels
