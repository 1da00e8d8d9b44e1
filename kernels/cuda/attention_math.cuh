#pragma once
// A warp's 16 queries against keys in shared memory by online softmax (Milakov and Gimelshein,
// 2018; FlashAttention-2's register layout): mma.m16n8k16 with float32 accumulators. Lane i holds
// rows i / 4 and i / 4 + 8 ("halves"), of each eight columns those at i % 4 * 2.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {

inline constexpr int kWarpQueries = 16;  // queries of an mma
inline constexpr float kLog2E = 1.4426950408889634f;

// `launch` with the size of a head as a constant, of those that tensor cores take.
template <class Launch>
void by_head_dim(int32_t head_dim, const Launch& launch) {
  switch (head_dim) {
    case 32:
      return launch(std::integral_constant<int, 32>());
    case 64:
      return launch(std::integral_constant<int, 64>());
    case 80:
      return launch(std::integral_constant<int, 80>());
    case 96:
      return launch(std::integral_constant<int, 96>());
    case 128:
      return launch(std::integral_constant<int, 128>());
  }
}

struct KeySpan {
  int32_t begin = 0, end = 0;  // positions
};

// Keys or values in shared memory, one row each. Either way eight rows' units of 16 bytes lie in
// different banks. kPadded: row after row, an odd number of units apart. kSwizzled: as the copy
// engine writes boxes of 64 columns: 16 rows of the first 64, then of the next; unit u of row r at
// u ^ (r % 8), from a multiple of 1024 bytes on.
enum class TileLayout { kPadded, kSwizzled };

// kKeys: keys of one call, a multiple of 16.
template <int kDim, int kKeys, TileLayout kLayout = TileLayout::kPadded>
struct WarpSoftmax {
  static constexpr bool kSwizzled = kLayout == TileLayout::kSwizzled;
  static constexpr int kAtomCols = 64, kAtomBytes = kKeys * kAtomCols * 2;
  static constexpr int kRowBytes = kSwizzled ? kAtomCols * 2 : kDim * 2 + 16;
  static constexpr int kScoreTiles = kKeys / 8, kDimTiles = kDim / 8;
  static_assert(kDim % 16 == 0 && kKeys % 16 == 0);

  uint32_t q[kDim / 16][4];
  float acc[kDimTiles][4];
  float highest[2], sum[2];  // of the halves, in units of log2

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = -INFINITY;
      sum[half] = 0;
    }
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[d][i] = 0;
    }
  }

  // Where unit first + of_lane of a row lies: `first` is even and known when compiled, of_lane 0 or
  // 1.
  __device__ static uint32_t place(uint32_t tile, int row, int first, int of_lane) {
    if constexpr (!kSwizzled) return tile + row * kRowBytes + (first + of_lane) * 16;
    const auto own = static_cast<uint32_t>(row * kRowBytes + (of_lane ^ row % 8) * 16);
    return tile + first / 8 * kAtomBytes + (own ^ static_cast<uint32_t>(first % 8 * 16));
  }

  __device__ void score(uint32_t keys, float (&s)[kScoreTiles][4]) const {
    const int row = lane() % 8 + lane() / 16 * 8, of_lane = lane() / 8 % 2;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = s[n + 1][i] = 0;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        uint32_t b[4];  // keys n*8 + 0-7: columns 0-7, 8-15; keys n*8 + 8-15: the same
        load_matrices<false>(b, place(keys, n * 8 + row, k * 2, of_lane));
        mma(s[n], q[k], b[0], b[1]);
        mma(s[n + 1], q[k], b[2], b[3]);
      }
    }
  }

  // Scores of keys from position `first` on to weights: masks what a half does not see, and moves
  // the sums and accumulators to the new maximum. `scale` is in units of log2.
  __device__ void soften(int32_t first, const KeySpan (&seen)[2], float scale,
                         float (&s)[kScoreTiles][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[half];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t key = first + n * 8 + lane() % 4 * 2 + i;
          float& x = s[n][half * 2 + i];
          x = key >= seen[half].begin && key < seen[half].end ? x * scale : -INFINITY;
          top = fmaxf(top, x);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float safe = top == -INFINITY ? 0.0f : top;
      const float shrink = exp2f(highest[half] - safe);
      highest[half] = top;
      float mine = 0;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[n][half * 2 + i];
          x = exp2f(x - safe);
          mine += x;
        }
      }
      sum[half] = sum[half] * shrink + mine;  // this lane's columns; lanes are added at the end
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        acc[d][half * 2] *= shrink;
        acc[d][half * 2 + 1] *= shrink;
      }
    }
  }

  __device__ void add_values(uint32_t values, const float (&s)[kScoreTiles][4]) {
    const int row = lane() % 16, of_lane = lane() / 16;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      const uint32_t a[4] = {pack_halves(s[n][0], s[n][1]), pack_halves(s[n][2], s[n][3]),
                             pack_halves(s[n + 1][0], s[n + 1][1]),
                             pack_halves(s[n + 1][2], s[n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        uint32_t b[4];  // columns d*8 + 0-7: keys 0-7, 8-15; columns d*8 + 8-15: the same
        load_matrices<true>(b, place(values, n * 8 + row, d, of_lane));
        mma(acc[d], a, b[0], b[1]);
        mma(acc[d + 1], a, b[2], b[3]);
      }
    }
  }

  // Adds the lanes' sums of a row.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
};

}  // namespace refrain::kernels
