// linear_recurrence: a thread takes a column of a request from token to token. A decode step is
// bound by memory; a prompt by the chain of its tokens, one load and a few operations each.

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

__device__ void set_element(const Matrix& m, int64_t row, int64_t col, float value) {
  const int64_t at = row * m.stride + col;
  if (m.dtype == DType::kFloat32) {
    static_cast<float*>(m.data)[at] = value;
  } else {
    static_cast<BFloat16*>(m.data)[at] = to_bfloat16(value);
  }
}

// Where the state after the token at `position` is in its slot; -1: before the first one.
__device__ int64_t version_at(const LinearRecurrenceArgs& args, int32_t position) {
  return int64_t{(position + args.versions) % args.versions} * args.cols;
}

__global__ void __launch_bounds__(kThreads) recurrence_kernel(LinearRecurrenceArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= args.cols) return;
  for_each_row(args.reqs, [&](int64_t row) {
    const int32_t begin = args.query_start[row], end = args.query_start[row + 1];
    if (begin == end) return;
    float* states = args.state + int64_t{args.row_slot[row]} * args.versions * args.cols + col;
    float h = states[version_at(args, args.positions[begin] - 1)];
    for (int32_t t = begin; t < end; ++t) {
      const float a = 1.0f / (1.0f + expf(-element(args.gate, t, col)));
      h = a * h + (1.0f - a) * element(args.in, t, col);
      set_element(args.out, t, col, h);
      if (t >= end - args.versions) states[version_at(args, args.positions[t])] = h;
    }
  });
}

}  // namespace

void linear_recurrence(StreamRef stream, const LinearRecurrenceArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.cols, kThreads)), grid_y(args.reqs.padded));
  shape.threads = kThreads;
  launch<&recurrence_kernel>(stream, "linear_recurrence", shape, args);
}

}  // namespace refrain::kernels
