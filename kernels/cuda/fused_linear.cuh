#pragma once
// The parts of fused_linear.cu: its arguments on the device, the layout of a block's shared memory,
// and the stream of boxes of weights that each warp draws through the copy engine.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels::fused_gemv {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kOutputs = 16;  // rows of the mma
inline constexpr int kChunk =
    64;  // k of a stage of a warp: 128 bytes of each of 16 rows of weights
inline constexpr int kHalfOutputs = 8;  // of a block with SiLU, or where 16 leave many SMs waiting
inline constexpr int kMaxStages = 5;
inline constexpr int kWeightBytes = kOutputs * kChunk * 2;  // of a stage
inline constexpr int kLeastBytes = 115 * 1024;              // of a block: more than half of 227 KiB
inline constexpr int kMostBytes = 140 * 1024;
inline constexpr int kMaxGroups = kMaxFusedNormCols / (8 * kThreads);

struct Partial {
  float sum[2][kWarps][kOutputs][kFewRows];  // by turns
  float squares[kWarps][kFewRows];
};

struct FusedGemv {
  Matrix in, delta, sum_out;
  const float* norm;
  float eps, per_column;  // 1 / K
  const float* bias;
  Matrix residual, out;
  int64_t n;  // outputs: columns of `out`
  int32_t k;
  int32_t blocks;  // of kOutputs, or of kHalfOutputs
  int32_t stages;
  Rows rows;
  PeerSum push;
};

// The block's shared memory: rings of weights; normed inputs, or rings of inputs; barriers; sums.
struct Layout {
  int32_t x_stride;  // bytes from one normed row to the next; odd in units of 16
  int32_t x_bytes, total;
};
// half: of 8 outputs a block and twice the columns a stage.
__host__ __device__ constexpr Layout layout_of(bool norm, bool half, int32_t k, int32_t rows,
                                               int32_t stages) {
  const int32_t chunk = half ? 2 * kChunk : kChunk;
  const int32_t turns = (k + chunk * kWarps - 1) / (chunk * kWarps);
  const int32_t x_stride = turns * kWarps * chunk * 2 + 16;
  const int32_t x_bytes = norm ? rows * x_stride : kWarps * stages * rows * chunk * 2;
  return {x_stride, x_bytes,
          stages * kWarps * kWeightBytes + x_bytes + kWarps * kMaxStages * 8 +
              static_cast<int32_t>(sizeof(Partial))};
}

// A warp's stream of boxes: chunk after chunk, block of outputs after block of outputs. Lane 0.
template <bool kNorm, bool kSilu, bool kHalf>
struct BoxStream {
  static constexpr int kColumns = kHalf ? 2 * kChunk : kChunk;  // of a stage
  const FusedGemv& args;
  const CUtensorMap *weight, *input;
  uint32_t ring, x_ring, barriers;  // of this warp
  int32_t turns, left;              // stages still to be issued
  int32_t turn = 0, block = 0;

  __device__ uint32_t x_bytes() const {
    return kNorm ? 0 : static_cast<uint32_t>(args.rows.padded) * kChunk * 2;
  }
  __device__ static void copy_box(uint32_t to, const CUtensorMap* map, int32_t col, int32_t row,
                                  uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(col), "r"(row), "r"(barrier)
        : "memory");
  }
  __device__ int32_t column(int32_t turn) const {
    return (turn * kWarps + static_cast<int32_t>(threadIdx.x) / 32) * kColumns;
  }
  __device__ void issue_weights(int stage) {
    const uint32_t barrier = barriers + stage * 8, to = ring + stage * kWeightBytes;
    expect_bytes(barrier, kWeightBytes + x_bytes());
    if constexpr (kSilu) {  // 8 rows of gate, 8 of up
      copy_box(to, weight, column(turn), block * kHalfOutputs, barrier);
      copy_box(to + kWeightBytes / 2, weight, column(turn),
               static_cast<int32_t>(args.n) + block * kHalfOutputs, barrier);
    } else if constexpr (kHalf) {  // 8 rows, 64 columns and the next 64
      copy_box(to, weight, column(turn), block * kHalfOutputs, barrier);
      copy_box(to + kWeightBytes / 2, weight, column(turn) + kChunk, block * kHalfOutputs, barrier);
    } else {
      copy_box(to, weight, column(turn), block * kOutputs, barrier);
    }
  }
  __device__ void issue_input(int stage, int32_t turn) const {
    if constexpr (!kNorm) {
      copy_box(x_ring + stage * x_bytes(), input, column(turn), 0, barriers + stage * 8);
    }
  }
  __device__ void advance() {
    --left;
    if (++turn == turns) {
      turn = 0;
      block += static_cast<int32_t>(gridDim.x);
    }
  }
  // The slot is free: all lanes have read it.
  __device__ void issue(int stage) {
    if (left == 0) return;
    issue_weights(stage);
    issue_input(stage, turn);
    advance();
  }
};

// Eight columns of a bfloat16 row that starts at a multiple of 16 bytes.
__device__ inline uint4 load_columns(const Matrix& m, int32_t row, int32_t col) {
  return __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(m.data) +
                                               row * m.stride + col));
}
__device__ inline void store_columns(const Matrix& m, int32_t row, int32_t col,
                                     const float (&x)[8]) {
  *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(m.data) + row * m.stride + col) = pack8(x);
}

}  // namespace refrain::kernels::fused_gemv
