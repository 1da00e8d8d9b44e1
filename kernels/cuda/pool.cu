// pool: a thread takes a column of a request from token to token, as on the host. Bound by memory:
// the mean reads a prompt's hidden states once, the others one row of them.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 128;

__device__ float element(const Matrix& m, int64_t row, int64_t col) {
  const int64_t at = row * m.stride + col;
  if (m.dtype == DType::kFloat32) return static_cast<const float*>(m.data)[at];
  return to_float(static_cast<const BFloat16*>(m.data)[at]);
}

__global__ void __launch_bounds__(kThreads) pool_kernel(const __grid_constant__ PoolArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint32_t turn = *args.inputs.turn;
  const bool odd = turn % kTurns != 0;
  uint32_t* const out_turn = odd ? args.outputs[1].turn : args.outputs[0].turn;
  float* const pooled = odd ? args.outputs[1].pooled : args.outputs[0].pooled;
  if (col == 0 && blockIdx.y == 0) *out_turn = turn;
  if (col >= args.cols) return;
  for_each_row(args.reqs, [&](int64_t row) {
    const int64_t first = args.inputs.query_start[row], end = args.inputs.query_start[row + 1];
    const int32_t length = args.inputs.seq_lens[row];
    const bool begins = length == end - first;
    const bool ends = (args.inputs.row_flags[row] & kRowSamples) != 0;
    float* const out = pooled + row * args.cols + col;
    if (args.pooling == Pooling::kLast) {
      if (ends) *out = element(args.in, end - 1, col);
      return;
    }
    float* const state = args.state + int64_t{args.inputs.row_slot[row]} * args.cols + col;
    float kept = begins ? element(args.in, first, col) : *state;
    const bool mean = args.pooling == Pooling::kMean;
    for (int64_t t = first + (begins ? 1 : 0); mean && t < end; ++t)
      kept += element(args.in, t, col);
    *state = kept;
    if (ends) *out = mean ? kept / static_cast<float>(length) : kept;
  });
}

}  // namespace

void pool(StreamRef stream, const PoolArgs& args) {
  static_assert(kTurns == 2);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.cols, kThreads)), grid_y(args.reqs.padded));
  shape.threads = kThreads;
  launch<&pool_kernel>(stream, "pool", shape, args);
}

}  // namespace refrain::kernels
