// linear for at most 8 rows, bfloat16: bound by reading the weights once. A block computes 16 or 32
// outputs; its eight warps take turns along K, and a warp multiplies 16 outputs × 16 columns × 8
// rows by one mma. The sum over k may be taken in any order, so a lane feeds the mma with 16 bytes
// of consecutive columns of its row of weights, and with the same columns of its row of inputs:
// both are plain row-major 16-byte loads, and one copy of the weights serves this and cuBLASLt. The
// first weights are loaded before the wait for the previous kernel.

#include <cuda_bf16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxRows = 8;  // columns of the mma
constexpr int kStep = 32;    // k of two mma: 8 for each of the four lanes of a row
constexpr int kLoads = 4;    // 16-byte loads of weights a lane has in flight, twice over

struct GemvArgs {
  const __nv_bfloat16* weight;  // [n, k]
  const __nv_bfloat16* in;      // [rows, k]
  int64_t in_stride;
  int64_t n;
  int32_t k;
  const float* bias;
  Matrix residual;
  Matrix out;
  Rows rows;
};

// Weights are read once: past L1; a chunk takes 256 bytes of each row.
__device__ uint4 load_weight(const __nv_bfloat16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What a warp multiplies at a time: kSteps steps of k for kTiles tiles of 16 outputs.
template <int kTiles>
struct Chunk {
  static constexpr int kSteps = kLoads / kTiles;
  static constexpr int32_t kColumns = kSteps * kStep;
  uint4 w[kSteps][kTiles][2];  // of outputs lane / 4 and lane / 4 + 8
  uint4 x[kSteps];             // of row lane / 4

  __device__ static int32_t column(int32_t chunk, int step) {
    return chunk * kColumns + step * kStep + static_cast<int32_t>(threadIdx.x) % 4 * 8;
  }
  __device__ void load_weights(const __nv_bfloat16* const (&rows)[kTiles][2], int32_t chunk,
                               int32_t k) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int32_t at = column(chunk, s);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          w[s][t][half] = at < k ? load_weight(rows[t][half] + at) : make_uint4(0, 0, 0, 0);
        }
      }
    }
  }
  // `row` null: this lane's row of inputs is beyond the padded ones.
  __device__ void load_inputs(const __nv_bfloat16* row, int32_t chunk, int32_t k) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int32_t at = column(chunk, s);
      x[s] = row != nullptr && at < k ? *reinterpret_cast<const uint4*>(row + at)
                                      : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ void multiply(float (&acc)[kTiles][4]) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 &a = w[s][t][0], &b = w[s][t][1];
        mma(acc[t], a.x, b.x, a.y, b.y, x[s].x, x[s].y);
        mma(acc[t], a.z, b.z, a.w, b.w, x[s].z, x[s].w);
      }
    }
  }
};

template <int kTiles>
__global__ void __launch_bounds__(kWarps * 32, 2) gemv_kernel(GemvArgs args) {
  constexpr int kOutputs = kTiles * 16;
  __shared__ float partial[kWarps][kOutputs][kMaxRows + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = int64_t{blockIdx.x} * kOutputs;
  const __nv_bfloat16* rows[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output = min(first + t * 16 + half * 8 + lane / 4, args.n - 1);
      rows[t][half] = args.weight + output * args.k;
    }
  }
  const int32_t chunks = (args.k + Chunk<kTiles>::kColumns - 1) / Chunk<kTiles>::kColumns;
  Chunk<kTiles> now, next;
  now.load_weights(rows, warp, args.k);
  wait_for_predecessor();
  let_successor_start();
  const __nv_bfloat16* in =
      lane / 4 < args.rows.padded ? args.in + lane / 4 * args.in_stride : nullptr;
  now.load_inputs(in, warp, args.k);
  float acc[kTiles][4] = {};
  for (int32_t chunk = warp; chunk < chunks; chunk += 2 * kWarps) {
    // The other buffer's loads are under way while this one is multiplied.
    next.load_weights(rows, chunk + kWarps, args.k);
    next.load_inputs(in, chunk + kWarps, args.k);
    now.multiply(acc);
    if (chunk + kWarps >= chunks) break;
    now.load_weights(rows, chunk + 2 * kWarps, args.k);
    now.load_inputs(in, chunk + 2 * kWarps, args.k);
    next.multiply(acc);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      partial[warp][t * 16 + i / 2 * 8 + lane / 4][lane % 4 * 2 + i % 2] = acc[t][i];
    }
  }
  __syncthreads();
  const int32_t live = live_rows(args.rows);
  for (int e = static_cast<int>(threadIdx.x); e < kOutputs * kMaxRows; e += kWarps * 32) {
    const int row = e / kOutputs, output = e % kOutputs;
    const int64_t n = first + output;
    if (row >= live || n >= args.n) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w][output][row];
    if (args.bias != nullptr) sum += args.bias[n];
    if (args.residual.data != nullptr) {
      sum += load_element(args.residual.data, args.residual.dtype, row * args.residual.stride + n);
    }
    store_element(args.out.data, args.out.dtype, row * args.out.stride + n, sum);
  }
}

// Any type, layout of rows and number of them; one warp an output and eight rows.
__global__ void __launch_bounds__(128) linear_simple_kernel(LinearArgs args) {
  wait_for_predecessor();
  let_successor_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t n = int64_t{blockIdx.x} * 4 + threadIdx.x / 32, k = args.weight.k;
  if (n >= args.weight.n) return;
  const int64_t first = int64_t{blockIdx.y} * kMaxRows, live = live_rows(args.rows);
  const int count = static_cast<int>(min(int64_t{kMaxRows}, live - first));
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

}  // namespace

bool can_gemv(const LinearArgs& args) {
  const Matrix weight{const_cast<void*>(args.weight.data), args.weight.dtype, args.weight.k};
  return args.rows.padded <= kMaxRows && args.in.dtype == DType::kBFloat16 &&
         args.weight.dtype == DType::kBFloat16 && rows_are_wide(weight) && rows_are_wide(args.in);
}

void linear_gemv(StreamRef stream, const LinearArgs& args) {
  GemvArgs gemv{};
  gemv.weight = static_cast<const __nv_bfloat16*>(args.weight.data);
  gemv.in = static_cast<const __nv_bfloat16*>(args.in.data);
  gemv.in_stride = args.in.stride;
  gemv.n = args.weight.n;
  gemv.k = static_cast<int32_t>(args.weight.k);
  gemv.bias = args.bias;
  gemv.residual = args.residual;
  gemv.out = args.out;
  gemv.rows = args.rows;
  LaunchShape shape;
  shape.threads = kWarps * 32;
  // Two tiles a block halve the reading of inputs, which counts with many rows; only where enough
  // blocks remain for every multiprocessor to hold several.
  const bool two = args.rows.padded > 2 && args.weight.n >= int64_t{64} * launcher(stream).sm_count;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.weight.n, two ? 32 : 16)));
  if (two) {
    launch<&gemv_kernel<2>>(stream, "linear", shape, gemv);
  } else {
    launch<&gemv_kernel<1>>(stream, "linear", shape, gemv);
  }
}

void linear_simple(StreamRef stream, const LinearArgs& args) {
  LaunchShape shape;
  shape.threads = 128;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.weight.n, 4)),
                    static_cast<unsigned>(ceil_div(args.rows.padded, kMaxRows)));
  launch<&linear_simple_kernel>(stream, "linear", shape, args);
}

}  // namespace refrain::kernels
