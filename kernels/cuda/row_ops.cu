// embed, select_rows, add, silu_mul, fold_norm: one pass over rows, eight columns a thread, bound
// by memory when there are many rows and by latency (one round trip) when there are few.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kColsPerBlock = kThreads * 8;

LaunchShape shape_of(int64_t cols, const Rows& rows) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(cols, kColsPerBlock)), grid_y(rows.padded));
  shape.threads = kThreads;
  return shape;
}

__device__ int64_t first_col() { return (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8; }

__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args, bool wide, bool wide_out) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = first_col(), n = args.table.k - col;
  if (n <= 0) return;
  for_each_row(args.rows, [&](int64_t row) {
    const int32_t id = args.ids[row];
    float x[8] = {};
    if (id >= args.vocab_begin && id < args.vocab_end) {
      const Matrix table{const_cast<void*>(args.table.data), args.table.dtype, args.table.k};
      load8(table, wide, id - args.vocab_begin, col, n, x);
    }
    store8(args.out, wide_out, row, col, n, x);
  });
}

__global__ void __launch_bounds__(kThreads) select_kernel(SelectRowsArgs args, bool wide) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = first_col(), n = args.cols - col;
  if (n <= 0) return;
  for_each_row(args.rows, [&](int64_t row) {
    float x[8];
    load8(args.in, wide, args.index[row], col, n, x);
    store8(args.out, wide, row, col, n, x);
  });
}

__global__ void __launch_bounds__(kThreads) add_kernel(AddArgs args, bool wide) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = first_col(), n = args.cols - col;
  if (n <= 0) return;
  for_each_row(args.rows, [&](int64_t row) {
    float a[8], b[8];
    load8(args.a, wide, row, col, n, a);
    load8(args.b, wide, row, col, n, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] += b[i];
    store8(args.out, wide, row, col, n, a);
  });
}

__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulArgs args, bool wide) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = first_col(), n = args.cols - col;
  if (n <= 0) return;
  for_each_row(args.rows, [&](int64_t row) {
    float gate[8], up[8];
    load8(args.in, wide, row, col, n, gate);
    load8(args.in, wide, row, args.cols + col, n, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] = silu(gate[i]) * up[i];
    store8(args.out, wide, row, col, n, gate);
  });
}

__global__ void __launch_bounds__(kThreads)
    fold_norm_kernel(FoldNormArgs args, bool wide, bool wide_norm) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t col = first_col(), n = args.cols - col;
  if (n <= 0) return;
  float scale[8];
  load8({args.norm, DType::kFloat32, args.cols}, wide_norm, 0, col, n, scale);
  for_each_row({static_cast<int32_t>(args.rows), nullptr}, [&](int64_t row) {
    float x[8];
    load8(args.weight, wide, row, col, n, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= scale[i];
    store8(args.weight, wide, row, col, n, x);
  });
}

__global__ void __launch_bounds__(kThreads) fill_ones_kernel(float* to, int32_t count) {
  let_successor_start();
  wait_for_predecessor();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) to[i] = 1.0f;
}

}  // namespace

void embed(StreamRef stream, const EmbedArgs& args) {
  const Matrix table{const_cast<void*>(args.table.data), args.table.dtype, args.table.k};
  launch<&embed_kernel>(stream, "embed", shape_of(args.table.k, args.rows), args,
                        rows_are_wide(table), rows_are_wide(args.out));
}

void select_rows(StreamRef stream, const SelectRowsArgs& args) {
  launch<&select_kernel>(stream, "select_rows", shape_of(args.cols, args.rows), args,
                         rows_are_wide(args.in) && rows_are_wide(args.out));
}

void add(StreamRef stream, const AddArgs& args) {
  launch<&add_kernel>(stream, "add", shape_of(args.cols, args.rows), args,
                      rows_are_wide(args.a) && rows_are_wide(args.b) && rows_are_wide(args.out));
}

void silu_mul(StreamRef stream, const SiluMulArgs& args) {
  launch<&silu_mul_kernel>(stream, "silu_mul", shape_of(args.cols, args.rows), args,
                           rows_are_wide(args.in) && rows_are_wide(args.out) && args.cols % 8 == 0);
}

void fold_norm(StreamRef stream, const FoldNormArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.cols, kColsPerBlock)),
                    grid_y(static_cast<int32_t>(args.rows)));
  shape.threads = kThreads;
  launch<&fold_norm_kernel>(stream, "fold_norm", shape, args, rows_are_wide(args.weight),
                            is_wide(args.norm));
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.cols, kThreads)));
  launch<&fill_ones_kernel>(stream, "fold_norm", shape, args.norm, args.cols);
}

}  // namespace refrain::kernels
