// rms_norm and add_rms_norm: a block has a row at a time in its registers between the two passes,
// and the weights for all its rows. One round trip to memory: latency bound for few rows, memory
// bound for many.

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kMaxHeld = 2;  // groups of eight columns a thread holds
constexpr int kMaxThreads = 1024;
constexpr int kSmThreads = 2048;  // of a multiprocessor
static_assert(kMaxHeld * 8 * kMaxThreads == kMaxNormCols);

__device__ int64_t column(int group) { return (int64_t{group} * blockDim.x + threadIdx.x) * 8; }

template <int kHeld>
struct Weights {
  float w[kHeld][8];

  // Before the wait: weights were written long before this step.
  __device__ void load(const float* weight, int32_t cols, bool wide) {
    const Matrix row{const_cast<float*>(weight), DType::kFloat32, 0};
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
      if (column(g) < cols) load8(row, wide, 0, column(g), cols - column(g), w[g]);
    }
  }
};

template <int kHeld>
__device__ void normalise(float (&x)[kHeld][8], float squares, const Weights<kHeld>& weights,
                          const Matrix& out, bool wide, int64_t row, int32_t cols, float eps) {
  __shared__ float shared[33];
  const float scale = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(cols) + eps);
#pragma unroll
  for (int g = 0; g < kHeld; ++g) {
    const int64_t col = column(g);
    if (col >= cols) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[g][i] = x[g][i] * scale * weights.w[g][i];
    store8(out, wide, row, col, cols - col, x[g]);
  }
}

template <int kHeld>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_kernel(RmsNormArgs args, bool wide, bool wide_weight) {
  Weights<kHeld> weights;
  weights.load(args.weight, args.cols, wide_weight);
  let_successor_start();
  wait_for_predecessor();
  float x[kHeld][8];
  const auto load = [&](int64_t row) {
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
      if (column(g) < args.cols) load8(args.in, wide, row, column(g), args.cols - column(g), x[g]);
    }
  };
  int64_t row = blockIdx.x;
  load(row);  // beside the count of live rows, which it may be beyond
  const int32_t rows = live_rows(args.rows);
#pragma unroll 1
  while (row < rows) {
    float squares = 0;
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
      if (column(g) >= args.cols) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(x[g][i], x[g][i], squares);
    }
    normalise(x, squares, weights, args.out, wide, row, args.cols, args.eps);
    if (row += gridDim.x; row < rows) load(row);
  }
}

template <int kHeld>
__global__ void __launch_bounds__(kMaxThreads)
    add_rms_norm_kernel(AddRmsNormArgs args, bool wide, bool wide_weight) {
  Weights<kHeld> weights;
  weights.load(args.weight, args.cols, wide_weight);
  let_successor_start();
  wait_for_predecessor();
  const int32_t rows = live_rows(args.rows);
#pragma unroll 1
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float x[kHeld][8], squares = 0;
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
      const int64_t col = column(g);
      if (col >= args.cols) continue;
      float delta[8];
      load8(args.residual, wide, row, col, args.cols - col, x[g]);
      load8(args.delta, wide, row, col, args.cols - col, delta);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[g][i] = rounded(x[g][i] + delta[i], args.residual.dtype);
        squares = fmaf(x[g][i], x[g][i], squares);
      }
      store8(args.residual, wide, row, col, args.cols - col, x[g]);
    }
    normalise(x, squares, weights, args.out, wide, row, args.cols, args.eps);
  }
}

// One group a thread as far as 1024 threads go, then two; as many blocks as the device has room
// for.
LaunchShape shape_of(StreamRef stream, int32_t cols, const Rows& rows, int held) {
  LaunchShape shape;
  shape.threads = static_cast<int>(ceil_div(ceil_div(cols, 8 * held), 32) * 32);
  const int64_t places = int64_t{launcher(stream).sm_count} * (kSmThreads / shape.threads);
  shape.grid = dim3(static_cast<unsigned>(std::min<int64_t>(rows.padded, places)));
  return shape;
}

template <int kHeld>
void launch_norm(StreamRef stream, const RmsNormArgs& args) {
  launch<&rms_norm_kernel<kHeld>>(stream, "rms_norm", shape_of(stream, args.cols, args.rows, kHeld),
                                  args, rows_are_wide(args.in) && rows_are_wide(args.out),
                                  is_wide(args.weight));
}

template <int kHeld>
void launch_norm(StreamRef stream, const AddRmsNormArgs& args) {
  launch<&add_rms_norm_kernel<kHeld>>(
      stream, "add_rms_norm", shape_of(stream, args.cols, args.rows, kHeld), args,
      rows_are_wide(args.residual) && rows_are_wide(args.delta) && rows_are_wide(args.out),
      is_wide(args.weight));
}

}  // namespace

void rms_norm(StreamRef stream, const RmsNormArgs& args) {
  if (args.cols <= 8 * kMaxThreads) return launch_norm<1>(stream, args);
  launch_norm<kMaxHeld>(stream, args);
}

void add_rms_norm(StreamRef stream, const AddRmsNormArgs& args) {
  if (args.cols <= 8 * kMaxThreads) return launch_norm<1>(stream, args);
  launch_norm<kMaxHeld>(stream, args);
}

}  // namespace refrain::kernels
