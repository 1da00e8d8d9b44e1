// linear for at most 8 rows, bfloat16: bound by reading the weights once. A block computes 16
// outputs at a time, its eight warps taking turns along K; a warp multiplies 16 outputs × 16
// columns × 8 rows by one mma. The sum over k may be taken in any order, so a lane feeds the mma
// with 16 bytes of consecutive columns of its row of weights, and with the same columns of its row
// of inputs: both are plain row-major pieces, and one copy of the weights serves this and cuBLASLt.
// Blocks stay for many outputs; every lane copies its weights into a ring of its own in shared
// memory, which needs no barrier, is never drained between outputs and is full before the wait for
// the previous kernel.
//
// H200, M = 1, of the 4543 GB/s that the benchmark's own reading reaches: 8B gate_up 93 %, lm_head
// 96 %, qkv 85 %, down 82 %, o 76 %; 1B gate_up 94 %, qkv 68 %, down 55 %, o 44 % (too few outputs
// for every multiprocessor). Above M = 4 cuBLASLt at M = 32 is as fast or faster on gate_up.

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kOutputs = 16;  // rows of the mma
constexpr int kMaxRows = 8;   // its columns
constexpr int kChunk = 64;    // k of a stage of a warp: 128 bytes of each of 16 rows of weights
constexpr int kPieces = 4;    // of 16 bytes, a lane and stage: two steps of k, two outputs

constexpr int ring_bytes(int stages) { return stages * kPieces * kThreads * 16; }

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

// The stream of a warp's weights: chunk after chunk, block of outputs after block of outputs.
struct WeightStream {
  const GemvArgs& args;
  uint32_t ring;    // this lane's first piece
  int32_t turns;    // chunks a warp takes of a block of outputs
  int64_t left;     // stages still to be issued
  int64_t outputs;  // first output of the next stage
  int32_t turn = 0;
  const __nv_bfloat16* rows[2];

  __device__ int32_t column(int32_t turn) const {
    return (turn * kWarps + static_cast<int32_t>(threadIdx.x) / 32) * kChunk +
           static_cast<int32_t>(threadIdx.x) % 4 * 8;
  }
  __device__ void find_rows() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = outputs + half * 8 + threadIdx.x % 32 / 4;
      rows[half] = args.weight + min(row, args.n - 1) * args.k;
    }
  }
  // Starts the copies of one stage; one group of copies even when none are left.
  __device__ void issue(int stage) {
    if (left > 0) {
      const int32_t col = column(turn);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int32_t at = col + i / 2 * 32;
        const bool valid = at < args.k;
        copy_async(ring + (stage * kPieces + i) * kThreads * 16, rows[i % 2] + (valid ? at : 0),
                   valid);
      }
      --left;
      if (++turn == turns) {
        turn = 0;
        outputs += int64_t{gridDim.x} * kOutputs;
        find_rows();
      }
    }
    commit_copies();
  }
};

// Sums of the warps' parts of 16 outputs, by one warp; then bias and residual.
__device__ void finish(const GemvArgs& args, const float (&partial)[kWarps][kOutputs][kMaxRows],
                       int64_t first, int32_t live) {
  for (int e = static_cast<int>(threadIdx.x) % 32; e < kOutputs * live; e += 32) {
    const int row = e / kOutputs, output = e % kOutputs;
    const int64_t n = first + output;
    if (n >= args.n) continue;
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

template <int kStages>
__global__ void __launch_bounds__(kThreads, 2) gemv_kernel(GemvArgs args) {
  extern __shared__ uint4 ring[];  // [kStages][kPieces][kThreads]
  __shared__ float partial[2][kWarps][kOutputs][kMaxRows];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t blocks = (args.n + kOutputs - 1) / kOutputs;
  const int64_t mine = (blocks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const int32_t turns = (args.k + kChunk * kWarps - 1) / (kChunk * kWarps);
  const int64_t stages = mine * turns;
  WeightStream stream{args, static_cast<uint32_t>(__cvta_generic_to_shared(ring + threadIdx.x)),
                      turns, stages, int64_t{blockIdx.x} * kOutputs};
  stream.find_rows();
#pragma unroll
  for (int s = 0; s < kStages; ++s) stream.issue(s);
  wait_for_predecessor();
  let_successor_start();
  const int32_t live = live_rows(args.rows);
  const __nv_bfloat16* in = args.in + lane / 4 * args.in_stride;
  const bool has_row = lane / 4 < args.rows.padded;
  float acc[4] = {};
  int stage = 0, turn = 0;
  int64_t block = 0;
  for (int64_t i = 0; i < stages; ++i) {
    uint4 x[2];
    const int32_t col = stream.column(turn);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      x[s] = has_row && col + s * 32 < args.k ? *reinterpret_cast<const uint4*>(in + col + s * 32)
                                              : make_uint4(0, 0, 0, 0);
    }
    wait_copies<kStages - 1>();
    const uint4* w = ring + stage * kPieces * kThreads + threadIdx.x;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 a = w[s * 2 * kThreads], b = w[(s * 2 + 1) * kThreads];
      mma(acc, {a.x, b.x, a.y, b.y}, x[s].x, x[s].y);
      mma(acc, {a.z, b.z, a.w, b.w}, x[s].z, x[s].w);
    }
    stream.issue(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (++turn < turns) continue;
    turn = 0;
    auto& part = partial[block % 2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      part[warp][j / 2 * 8 + lane / 4][lane % 4 * 2 + j % 2] = acc[j];
      acc[j] = 0;
    }
    // By the time the other half is written again, all have passed the next barrier.
    __syncthreads();
    if (warp == block % kWarps) {
      finish(args, part, (blockIdx.x + block * gridDim.x) * kOutputs, live);
    }
    ++block;
  }
}

// Any type, layout of rows and number of them; one warp an output and eight rows.
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
  // Two blocks a multiprocessor with long rings, or three with shorter ones: whichever leaves the
  // fullest multiprocessor fewer outputs.
  const int64_t blocks = ceil_div(args.weight.n, kOutputs), sms = launcher(stream).sm_count;
  const bool two = ceil_div(blocks, sms * 2) * 2 <= ceil_div(blocks, sms * 3) * 3;
  LaunchShape shape;
  shape.threads = kThreads;
  shape.grid = dim3(static_cast<unsigned>(std::min(blocks, sms * (two ? 2 : 3))));
  shape.shared_bytes = static_cast<size_t>(ring_bytes(two ? 6 : 4));
  if (two) {
    launch<&gemv_kernel<6>, ring_bytes(6)>(stream, "linear", shape, gemv);
  } else {
    launch<&gemv_kernel<4>, ring_bytes(4)>(stream, "linear", shape, gemv);
  }
}

void linear_simple(StreamRef stream, const LinearArgs& args) {
  LaunchShape shape;
  shape.threads = 128;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.weight.n, 4)),
                    grid_y(ceil_div(args.rows.padded, kMaxRows)));
  launch<&linear_simple_kernel>(stream, "linear", shape, args);
}

}  // namespace refrain::kernels
