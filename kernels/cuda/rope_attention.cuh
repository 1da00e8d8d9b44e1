#pragma once
// The parts of rope_attention.cu: a warp's online softmax over the keys it reads, places in the
// paged cache, and what a block of it keeps in shared memory.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/rope_columns.cuh"

namespace refrain::kernels::rope_attend {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kLoads = 4;  // of keys, and of values, a lane has under way
inline constexpr int kMaxSplits = 16;
inline constexpr float kLog2E = 1.4426950408889634f;

// What a block has of a request and KV head.
template <int kDim, int kGroup>
struct Shared {
  float q[kGroup][kDim];  // rotated, times scale and log2(e)
  uint4 key[kDim / 8];    // of the new token
  // By warp; then the block's: maxima, weights of the warps, totals.
  float sum[kWarps][kGroup * kDim];
  float highest[kWarps][kGroup], total[kWarps][kGroup];
  float top[kGroup], weight[kWarps][kGroup], all[kGroup];
  // What the cluster's blocks have of the elements that this block writes: [splits][slice].
  float parts[kGroup * kDim + kMaxSplits];
  float part_top[kMaxSplits][kGroup], part_all[kMaxSplits][kGroup];
};

template <int kDim, int kGroup>
struct Accumulator {
  static constexpr int kLanes = Columns<kDim>::kLanes;
  float q[kGroup][8];
  float sum[kGroup][8], highest[kGroup], total[kGroup];

  __device__ void begin(const Shared<kDim, kGroup>& shared, int32_t first) {
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      highest[h] = -INFINITY;
      total[h] = 0;
      load_floats8(shared.q[h] + first, q[h]);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] = 0;
    }
  }

  // Every lane of the warp. Keys that are not `valid` count nothing; their values are 0.
  __device__ void add(const uint4 (&keys)[kLoads], const uint4 (&values)[kLoads],
                      const bool (&valid)[kLoads]) {
    float score[kLoads][kGroup];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      float k[8];
      unpack8(keys[u], k);
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) s = fmaf(q[h][i], k[i], s);
        score[u][h] = s;
      }
    }
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) {
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          score[u][h] += __shfl_xor_sync(~0u, score[u][h], offset);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      float top = highest[h];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        score[u][h] = valid[u] ? score[u][h] : -INFINITY;
        top = fmaxf(top, score[u][h]);
      }
      const float safe = top == -INFINITY ? 0.0f : top;
      const float shrink = exp2f(highest[h] - safe);
      highest[h] = top;
      total[h] *= shrink;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[h][i] *= shrink;
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        score[u][h] = exp2f(score[u][h] - safe);
        total[h] += score[u][h];
      }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      float v[8];
      unpack8(values[u], v);
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[h][i] = fmaf(score[u][h], v[i], sum[h][i]);
      }
    }
  }

  // The keys of all lanes of the warp in each; then to shared memory.
  __device__ void end(Shared<kDim, kGroup>& shared, int32_t first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int offset = kLanes; offset < 32; offset *= 2) {
        const float top = fmaxf(highest[h], __shfl_xor_sync(~0u, highest[h], offset));
        const float shrink = top == -INFINITY ? 0.0f : exp2f(highest[h] - top);
        highest[h] = top;
        total[h] *= shrink;
        total[h] += __shfl_xor_sync(~0u, total[h], offset);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sum[h][i] *= shrink;
          sum[h][i] += __shfl_xor_sync(~0u, sum[h][i], offset);
        }
      }
      if (lane >= kLanes) continue;
      auto* to = reinterpret_cast<float4*>(shared.sum[warp] + h * kDim + first);
      to[0] = make_float4(sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
      to[1] = make_float4(sum[h][4], sum[h][5], sum[h][6], sum[h][7]);
      shared.highest[warp][h] = highest[h];
      shared.total[warp][h] = total[h];
    }
  }
};

// exp2(high - top), 0 for a part that saw no key.
__device__ inline float weight_of(float high, float top) {
  return high == -INFINITY ? 0.0f : exp2f(high - top);
}

// Where positions lie in the paged cache. Division by multiplication: exact below 2^24 positions.
struct Pages {
  const int32_t* blocks;
  int32_t block_size;
  uint32_t reciprocal;  // of block_size, times 2^31, rounded up
  int64_t values_at;    // elements from a block's keys to its values
  int32_t dim;

  __device__ int64_t place(int32_t position) const {
    const auto block =
        static_cast<int32_t>(__umulhi(2 * static_cast<uint32_t>(position), reciprocal));
    return __ldcg(blocks + block) * 2 * values_at + int64_t{position - block * block_size} * dim;
  }
};

}  // namespace refrain::kernels::rope_attend
