// What a draft head asks beyond a draft model: copies of rows and of a few words, bound by memory
// where there are many rows and by latency where there are few.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 256;

// A block a row; the rest of the tokens is cleared by all.
__global__ void __launch_bounds__(kThreads) next_tokens_kernel(NextTokensArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const auto row = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const int32_t live =
      args.rows.live == nullptr ? args.rows.padded : min(*args.rows.live, args.rows.padded);
  const auto stride = static_cast<int32_t>(gridDim.x) * kThreads;
  for (int32_t t = args.query_start[live] + row * kThreads + thread; t < args.tokens.padded;
       t += stride) {
    args.out[t] = 0;
  }
  if (row >= live) return;
  const int32_t* history = args.history + int64_t{args.row_slot[row]} * args.history_cols;
  for (int32_t t = args.query_start[row] + thread; t < args.query_start[row + 1]; t += kThreads) {
    const int32_t next = args.positions[t] + 1;
    args.out[t] = next < args.history_cols ? history[next] : 0;
  }
}

constexpr int kColsPerBlock = kThreads * 8;

// A part for each index of the grid's third dimension.
__global__ void __launch_bounds__(kThreads)
    concat_kernel(const __grid_constant__ ConcatArgs args, bool wide) {
  let_successor_start();
  wait_for_predecessor();
  static_assert(kMaxParts == 3);
  const auto at = static_cast<int>(blockIdx.z);
  const Matrix& part = at == 0 ? args.parts[0] : at == 1 ? args.parts[1] : args.parts[2];
  const int64_t cols = at == 0 ? args.cols[0] : at == 1 ? args.cols[1] : args.cols[2];
  const int64_t begin = at == 0 ? 0 : args.cols[0] + (at == 1 ? 0 : args.cols[1]);
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8, n = cols - col;
  if (n <= 0) return;
  for_each_row(args.rows, [&](int64_t row) {
    float x[8];
    load8(part, wide, row, col, n, x);
    store8(args.out, wide, row, begin + col, n, x);
  });
}

// A block a row: the row is cleared, then what there is goes in.
__global__ void __launch_bounds__(kThreads) map_logits_kernel(MapLogitsArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const int64_t row = blockIdx.x;
  if (args.rows.live != nullptr && row >= *args.rows.live) return;
  const float* in = static_cast<const float*>(args.in.data) + row * args.in.stride;
  float* out = static_cast<float*>(args.out.data) + row * args.out.stride;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.vocab; i += kThreads)
    out[i] = -INFINITY;
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.small; i += kThreads) {
    const int32_t token = i + static_cast<int32_t>(args.offset[i]);
    if (token >= 0 && token < args.vocab) out[token] = in[i];
  }
}

}  // namespace

void next_tokens(StreamRef stream, const NextTokensArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.rows.padded));
  shape.threads = kThreads;
  launch<&next_tokens_kernel>(stream, "next_tokens", shape, args);
}

void concat(StreamRef stream, const ConcatArgs& args) {
  int32_t widest = 0;
  bool wide = rows_are_wide(args.out);
  for (int32_t i = 0; i < kMaxParts; ++i) {
    widest = widest > args.cols[i] ? widest : args.cols[i];
    if (args.cols[i] > 0) wide = wide && rows_are_wide(args.parts[i]) && args.cols[i] % 8 == 0;
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(widest, kColsPerBlock)),
                    grid_y(args.rows.padded), kMaxParts);
  shape.threads = kThreads;
  launch<&concat_kernel>(stream, "concat", shape, args, wide);
}

void map_logits(StreamRef stream, const MapLogitsArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.rows.padded));
  shape.threads = kThreads;
  launch<&map_logits_kernel>(stream, "map_logits", shape, args);
}

}  // namespace refrain::kernels
