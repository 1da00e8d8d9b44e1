// fused_linear for few rows, bfloat16: bound by reading the weights once, so everything that would
// be a small kernel beside it is folded in: residual add and RMSNorm before, SiLU·mul, bias and
// residual after. A block computes 16 (or 8) outputs at a time, its eight warps along K; a
// warp multiplies 16 outputs × 16 columns × 8 rows by one mma. The sum over k may be taken in any
// order, so a lane feeds the mma with 16 bytes of consecutive columns of its row of weights and
// with the same columns of the input: both stay row-major, and one copy of the weights serves this
// and cuBLASLt.
//
// Every warp owns a ring of boxes of weights, filled by the copy engine, with no barrier of the
// block in the stream. The ring is filled before the wait for the previous kernel. A block asks for
// more than half of a multiprocessor's shared memory: with less, blocks of one launch came to lie
// two on a multiprocessor and none on others wherever a small kernel stood between, and the step
// took twice as long; where they do lie right, a ring that fills beside the linear before it gains
// nothing, nor does asking L2 for more (docs/gpu-results.md). Code is kept small (10 to 20 KB):
// kernels that alternate must stay in the instruction cache together; with 25 KB each, and 76 KB of
// attention, an 8B step took 5 % longer.
//
// H200, M = 1, of the 4540 GB/s that reading reaches, norm and SiLU·mul included: 8B gate_up 96 %,
// down 92 %, qkv 81 %, o 74 %, lm_head 98 %; 1B gate_up 88 %, down 75 %, qkv 55 %, o 42 % (a launch
// costs 2 us besides its bytes).

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fused_linear.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/peer_sum.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels {
namespace {

using namespace fused_gemv;

// The rows of the input, plus delta, times the norm's weights, to shared memory; sums of squares by
// warp. The blocks take turns by groups of columns in writing the sum.
template <int kGroups>
__device__ void norm_inputs(const FusedGemv& args, const float (&weights)[kGroups][8],
                            unsigned char* x, int32_t x_stride, Partial& partial) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int32_t row = 0; row < args.rows.padded; ++row) {
    uint4 in[kGroups];  // all on their way together
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int32_t col = (g * kThreads + static_cast<int32_t>(threadIdx.x)) * 8;
      in[g] = col < args.k ? load_columns(args.in, row, col) : make_uint4(0, 0, 0, 0);
    }
    float squares = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int32_t group = g * kThreads + static_cast<int32_t>(threadIdx.x), col = group * 8;
      if (col * 2 + 32 > x_stride) continue;  // past the last turn
      float v[8];
      unpack8(in[g], v);
      if (col < args.k) {
        if (args.delta.data != nullptr) {
          float delta[8];
          unpack8(load_columns(args.delta, row, col), delta);
#pragma unroll
          for (int i = 0; i < 8; ++i) v[i] = rounded(v[i] + delta[i], DType::kBFloat16);
          if (group % static_cast<int32_t>(gridDim.x) == static_cast<int32_t>(blockIdx.x)) {
            store_columns(args.sum_out, row, col, v);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        packed[i] = pack_halves(v[2 * i] * weights[g][2 * i], v[2 * i + 1] * weights[g][2 * i + 1]);
      }
      *reinterpret_cast<uint4*>(x + row * x_stride + col * 2) =
          make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
    squares = warp_sum(squares);
    if (lane == 0) partial.squares[warp][row] = squares;
  }
  __syncthreads();
}

// The outputs of one block of 16 rows of weights, for a warp: lane + 32 i is (row, output).
template <bool kNorm, int kWide, bool kSilu>
struct Outputs {  // kWide: of a row
  static constexpr int kHeld = (kWide * kFewRows + 31) / 32;
  const FusedGemv& args;
  int32_t block;
  float before[kHeld];  // bias and residual

  __device__ static int row(int i) { return (static_cast<int>(threadIdx.x) % 32 + 32 * i) / kWide; }
  __device__ static int output(int i) {
    return (static_cast<int>(threadIdx.x) % 32 + 32 * i) % kWide;
  }
  __device__ int64_t column(int i) const { return int64_t{block} * kWide + output(i); }
  __device__ bool mine(int i, int32_t live) const { return row(i) < live && column(i) < args.n; }

  __device__ void load(int32_t live) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      before[i] = 0;
      if (kSilu || !mine(i, live)) continue;
      if (args.bias != nullptr) before[i] = args.bias[column(i)];
      if (args.residual.data != nullptr) {
        before[i] += load_element(args.residual.data, args.residual.dtype,
                                  row(i) * args.residual.stride + column(i));
      }
    }
  }
  __device__ static float sum(const Partial& partial, int turn, int output, int row) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial.sum[turn][w][output][row];
    return sum;
  }
  __device__ float scale(const Partial& partial, int row) const {
    if (!kNorm) return 1.0f;
    float squares = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) squares += partial.squares[w][row];
    return rsqrtf(squares * args.per_column + args.eps);
  }
  // To all ranks: four neighbouring lanes have a packet, and each sends it to one of them.
  __device__ void push(const Partial& partial, int turn, int32_t live, uint32_t number) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, peer = lane % 4;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float value = mine(i, live) ? sum(partial, turn, output(i), row(i)) + before[i] : 0.0f;
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __shfl_sync(~0u, value, lane / 4 * 4 + j);
      if (!mine(i, live) || peer >= args.push.size) continue;
      push_words(packet_of(args.push, peer, args.push.rank, row(i), column(i), args.n),
                 make_uint4(pack_halves(v[0], v[1]), number, pack_halves(v[2], v[3]), number));
    }
  }
  __device__ void store(const Partial& partial, int turn, int32_t live) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!mine(i, live)) continue;
      const float s = scale(partial, row(i));
      float value = sum(partial, turn, output(i), row(i)) * s;
      if constexpr (kSilu) {
        const float up = sum(partial, turn, output(i) + kHalfOutputs, row(i)) * s;
        value = silu(value) * up;
      } else {
        value += before[i];
      }
      store_element(args.out.data, args.out.dtype, row(i) * args.out.stride + column(i), value);
    }
  }
};

// kGroups: of 8 columns that a thread norms; 0: no norm. kHalf: blocks of 8 outputs, with a norm
// and without SiLU·mul. kPush: the output goes to the ranks, without a norm.
template <int kGroups, bool kSilu, bool kHalf, bool kPush>
__global__ void __launch_bounds__(kThreads, 2)
    fused_gemv_kernel(const __grid_constant__ FusedGemv args,
                      const __grid_constant__ CUtensorMap weight,
                      const __grid_constant__ CUtensorMap input) {
  constexpr bool kNorm = kGroups > 0;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t stages = args.stages, rows = args.rows.padded;
  const Layout layout = layout_of(kNorm, kHalf, args.k, rows, stages);
  unsigned char* x = shared + stages * kWarps * kWeightBytes;
  auto& partial = *reinterpret_cast<Partial*>(x + layout.x_bytes + kWarps * kMaxStages * 8);
  using Boxes = BoxStream<kNorm, kSilu, kHalf>;
  constexpr int32_t kTurnColumns = Boxes::kColumns * kWarps;
  const int32_t turns = (args.k + kTurnColumns - 1) / kTurnColumns;
  const int32_t mine =
      (args.blocks - static_cast<int32_t>(blockIdx.x) + static_cast<int32_t>(gridDim.x) - 1) /
      static_cast<int32_t>(gridDim.x);
  const uint32_t barriers = shared_address(x + layout.x_bytes) + warp * kMaxStages * 8;
  Boxes stream{args,
               &weight,
               &input,
               shared_address(shared) + warp * stages * kWeightBytes,
               shared_address(x) + warp * stages * rows * kChunk * 2,
               barriers,
               turns,
               mine * turns,
               0,
               static_cast<int32_t>(blockIdx.x)};
  const int32_t first = min(stages, mine * turns);
  if (lane == 0) {
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      init_barrier(barriers + s * 8, 1);
    }
    publish_barriers();
#pragma unroll 1
    for (int s = 0; s < first; ++s) {
      stream.issue_weights(s);
      stream.advance();
    }
  }
  __syncwarp();
  if constexpr (kNorm) {
    float weights[kNorm ? kGroups : 1][8];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int32_t col = (g * kThreads + static_cast<int32_t>(threadIdx.x)) * 8;
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float4 w = col < args.k ? *reinterpret_cast<const float4*>(args.norm + col + i)
                                      : make_float4(0, 0, 0, 0);
        weights[g][i] = w.x, weights[g][i + 1] = w.y, weights[g][i + 2] = w.z;
        weights[g][i + 3] = w.w;
      }
    }
    wait_for_predecessor();
    norm_inputs<kGroups>(args, weights, x, layout.x_stride, partial);
  } else {
    wait_for_predecessor();
    if (lane == 0) {
      // As issue_weights went: the first stages are of the first turns, block after block.
#pragma unroll 1
      for (int s = 0; s < first; ++s) stream.issue_input(s, s % turns);
    }
    __syncwarp();
  }
  let_successor_start();
  const int32_t live = live_rows(args.rows);
  const uint32_t number = kPush ? __ldcg(push_counter(args.push)) + 1 : 0;
  const int unit = lane % 4 * 2, r = lane / 4;  // unit of 16 bytes of a row, row of 8
  const uint32_t weight_row = stream.ring + r * 128;
  const uint32_t x_row = kNorm
                             ? shared_address(x) + r * layout.x_stride + warp * Boxes::kColumns * 2
                             : stream.x_ring + r * kChunk * 2;
  const bool has_row = r < rows;
  float acc[2][4] = {};
  int32_t stage = 0, turn = 0, block = 0;
  uint32_t phase = 0;
  Outputs<kNorm, kSilu || kHalf ? kHalfOutputs : kOutputs, kSilu> outputs{
      args, static_cast<int32_t>(blockIdx.x), {}};
  if (warp == 0) outputs.load(live);
#pragma unroll 1
  for (int32_t left = mine * turns; left > 0; --left) {
    wait_barrier(barriers + stage * 8, phase);
    const uint32_t w = weight_row + stage * kWeightBytes;
    const uint32_t xs = kNorm ? x_row + turn * kTurnColumns * 2 : x_row + stage * rows * kChunk * 2;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint32_t swizzled = ((unit + s) ^ r) * 16;
      const uint4 a = load_shared(w + swizzled), b = load_shared(w + 8 * 128 + swizzled);
      const uint4 v = has_row ? load_shared(xs + (unit + s) * 16) : make_uint4(0, 0, 0, 0);
      if constexpr (kHalf) {
        const uint4 next =
            has_row ? load_shared(xs + kChunk * 2 + (unit + s) * 16) : make_uint4(0, 0, 0, 0);
        mma(acc[0], {a.x, 0, a.y, 0}, v.x, v.y);
        mma(acc[1], {a.z, 0, a.w, 0}, v.z, v.w);
        mma(acc[0], {b.x, 0, b.y, 0}, next.x, next.y);
        mma(acc[1], {b.z, 0, b.w, 0}, next.z, next.w);
      } else {
        mma(acc[0], {a.x, b.x, a.y, b.y}, v.x, v.y);
        mma(acc[1], {a.z, b.z, a.w, b.w}, v.z, v.w);
      }
    }
    __syncwarp();
    if (lane == 0) stream.issue(stage);
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
    if (++turn < turns) continue;
    turn = 0;
    if (lane % 4 * 2 < kFewRows) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        partial.sum[block % 2][warp][j / 2 * 8 + r][lane % 4 * 2 + j % 2] = acc[0][j] + acc[1][j];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[0][j] = acc[1][j] = 0;
    // By the time the other half is written again, all have passed the next barrier.
    __syncthreads();
    if (warp == block % kWarps) {
      if constexpr (kPush) {
        outputs.push(partial, block % 2, live, number);
      } else {
        outputs.store(partial, block % 2, live);
      }
    }
    ++block;
    outputs.block += static_cast<int32_t>(gridDim.x);
    if (warp == block % kWarps) outputs.load(live);
  }
  if (kPush && threadIdx.x == 0) *push_counter(args.push) = number;
}

template <int kGroups, bool kSilu = false, bool kHalf = false, bool kPush = false>
void launch_fused(StreamRef stream, const FusedLinearArgs& args, const FusedGemv& gemv,
                  const LaunchShape& shape) {
  const LinearArgs& linear = args.linear;
  const CUtensorMap weight =
      make_tensor_map(linear.weight.data, linear.weight.n, linear.weight.k, linear.weight.k,
                      kSilu || kHalf ? kHalfOutputs : kOutputs, kChunk, true);
  const CUtensorMap input =
      make_tensor_map(linear.in.data, linear.rows.padded, linear.weight.k, linear.in.stride,
                      static_cast<uint32_t>(linear.rows.padded), kChunk, false);
  launch<&fused_gemv_kernel<kGroups, kSilu, kHalf, kPush>, kMostBytes>(stream, "fused_linear",
                                                                       shape, gemv, weight, input);
}

template <int kGroups>
void launch_normed(StreamRef stream, const FusedLinearArgs& args, const FusedGemv& gemv,
                   const LaunchShape& shape, bool half) {
  if (args.silu_mul) return launch_fused<kGroups, true>(stream, args, gemv, shape);
  if (half) return launch_fused<kGroups, false, true>(stream, args, gemv, shape);
  launch_fused<kGroups>(stream, args, gemv, shape);
}

// Outputs of the block that computes most of them.
int64_t most_outputs(int64_t n, int64_t of_block, int64_t sm_count) {
  return ceil_div(ceil_div(n, of_block), sm_count) * of_block;
}

// Whether blocks of 8 outputs, of which the busiest multiprocessor gets fewer bytes, make up for
// what a block costs besides. qkv with norm, us: 70B/4 (K 8192) 14.95 -> 13.08, 1B (K 2048) 5.0 ->
// 5.6.
bool half_blocks_pay(const FusedGemv& gemv, int64_t sm_count) {
  return gemv.k > 4096 && 10 * most_outputs(gemv.n, kHalfOutputs, sm_count) <=
                              9 * most_outputs(gemv.n, kOutputs, sm_count);
}

}  // namespace

bool can_fuse_few(const LinearArgs& args) {
  return args.rows.padded <= kFewRows && is_wide_bfloat16(args) && args.weight.k % 8 == 0;
}

void fused_linear(StreamRef stream, const FusedLinearArgs& args) {
  const LinearArgs& linear = args.linear;
  if (args.best != nullptr) return linear_best(stream, args);
  if (linear.rows.padded > kClusterRows) return linear_silu(stream, linear);
  const bool norm = args.norm != nullptr;
  const bool clusters = !norm && args.push.size == 0 && linear.rows.padded > kGemvRows &&
                        can_cluster(linear) && (!args.silu_mul || linear.weight.n % 32 == 0);
  if (linear.rows.padded > kFewRows || args.unit_norm || args.send.size > 0 || clusters)
    return linear_cluster(stream, args);
  FusedGemv gemv{};
  gemv.in = linear.in;
  gemv.delta = args.delta;
  gemv.sum_out = args.sum_out;
  gemv.norm = args.norm;
  gemv.eps = args.eps;
  gemv.per_column = 1.0f / static_cast<float>(linear.weight.k);
  gemv.bias = linear.bias;
  gemv.residual = linear.residual;
  gemv.out = linear.out;
  gemv.n = args.silu_mul ? linear.weight.n / 2 : linear.weight.n;
  gemv.k = static_cast<int32_t>(linear.weight.k);
  const int64_t sm_count = launcher(stream).sm_count;
  const bool half = norm && !args.silu_mul && half_blocks_pay(gemv, sm_count);
  gemv.blocks =
      static_cast<int32_t>(ceil_div(gemv.n, args.silu_mul || half ? kHalfOutputs : kOutputs));
  gemv.rows = linear.rows;
  gemv.push = args.push;
  for (gemv.stages = kMaxStages; gemv.stages > 1; --gemv.stages) {
    if (layout_of(norm, half, gemv.k, linear.rows.padded, gemv.stages).total <= kMostBytes) break;
  }
  LaunchShape shape;
  shape.threads = kThreads;
  shape.grid = dim3(static_cast<unsigned>(std::min<int64_t>(gemv.blocks, sm_count)));
  shape.shared_bytes = static_cast<size_t>(
      std::max(kLeastBytes, layout_of(norm, half, gemv.k, linear.rows.padded, gemv.stages).total));
  if (!norm) {
    if (args.silu_mul) return launch_fused<0, true>(stream, args, gemv, shape);
    if (args.push.size > 0) return launch_fused<0, false, false, true>(stream, args, gemv, shape);
    return launch_fused<0>(stream, args, gemv, shape);
  }
  if (args.pull.size > 0) {
    add_pulled_sum(stream, args.pull, linear.in, args.sum_out, linear.rows, linear.weight.k);
    gemv.in = args.sum_out;
    gemv.delta = {};
  }
  const int64_t groups = ceil_div(gemv.k, 8 * kThreads);
  if (groups == 1) return launch_normed<1>(stream, args, gemv, shape, half);
  if (groups == 2) return launch_normed<2>(stream, args, gemv, shape, half);
  static_assert(kMaxGroups == 4);
  launch_normed<4>(stream, args, gemv, shape, half);
}

}  // namespace refrain::kernels
