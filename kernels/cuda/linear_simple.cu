// linear for any type and alignment: a warp an output, eight rows at a time. Slow; for what neither
// the kernels for few rows nor cuBLASLt take.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kMaxRows = 8;

__device__ void simple_rows(const LinearArgs& args, int64_t n, int64_t first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t k = args.weight.k;
  float acc[kMaxRows] = {};
  for (int64_t i = lane; i < k; i += 32) {
    const float w = load_element(args.weight.data, args.weight.dtype, n * k + i);
#pragma unroll
    for (int r = 0; r < kMaxRows; ++r) {
      if (r >= count) continue;
      acc[r] = fmaf(w, load_element(args.in.data, args.in.dtype, (first + r) * args.in.stride + i),
                    acc[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kMaxRows; ++r) {
    float sum = warp_sum(acc[r]);
    if (r >= count || lane != 0) continue;
    if (args.bias != nullptr) sum += args.bias[n];
    if (args.residual.data != nullptr) {
      sum += load_element(args.residual.data, args.residual.dtype,
                          (first + r) * args.residual.stride + n);
    }
    store_element(args.out.data, args.out.dtype, (first + r) * args.out.stride + n, sum);
  }
}

__global__ void __launch_bounds__(128) linear_simple_kernel(LinearArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const int64_t n = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (n >= args.weight.n) return;
  const int64_t live = live_rows(args.rows), step = int64_t{gridDim.y} * kMaxRows;
#pragma unroll 1
  for (int64_t first = int64_t{blockIdx.y} * kMaxRows; first < live; first += step) {
    simple_rows(args, n, first, static_cast<int>(min(int64_t{kMaxRows}, live - first)));
  }
}

}  // namespace

void linear_simple(StreamRef stream, const LinearArgs& args) {
  LaunchShape shape;
  shape.threads = 128;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.weight.n, 4)),
                    grid_y(ceil_div(args.rows.padded, kMaxRows)));
  launch<&linear_simple_kernel>(stream, "linear", shape, args);
}

}  // namespace refrain::kernels
