#pragma once
// linear for many rows. The weights of a tile block are widened to float, kDepth inputs at a time,
// and stay in L1 while all rows of a panel pass: no conversion is left between multiply-adds. An
// output's sum waits in memory between two depths, which changes no bit of it. Bound by arithmetic.

#include "kernels/host/ops/linear_blocks.h"

namespace refrain::kernels {

inline constexpr int64_t kManyRows = 24;
inline constexpr int64_t kManyInputs = 65536;
inline constexpr int64_t kDepth = 128;               // inputs: a 64-output block is 32 KiB
inline constexpr int64_t kPanelFloats = 320 * 1024;  // inputs and sums of a panel, in L2

// out[t][depth][16] from the inputs [k, k + depth) of kTiles tiles.
template <class S, int kTiles>
void widen_block(const BFloat16* w, int64_t w_stride, int64_t depth, float* out) {
  for (int t = 0; t < kTiles; ++t) {
    const BFloat16* from = w + t * w_stride;
    float* to = out + t * depth * 16;
    for (int64_t i = 0; i < depth; i += 2) {
      _mm_prefetch(reinterpret_cast<const char*>(from + i * 16) + kPrefetchBytes, _MM_HINT_T0);
      S::store(to + i * 16, S::load_even(from + i * 16));
      S::store(to + i * 16 + 16, S::load_odd(from + i * 16));
    }
  }
}

struct ManyScratch {
  float* sums;   // [rows of the panel, kTileBlock, 16]
  float* block;  // [kTileBlock, kDepth, 16]
};

// `rows` rows of out, of which `x` is the first, times kTiles tiles.
template <class S, class W, int kTiles>
void many_block(const LinearArgs& args, const Matrix& x, Range rows, int64_t tile,
                const ManyScratch& scratch) {
  constexpr int kRows = S::kRowBlock;
  const int64_t k = args.weight.k;
  const auto* weights = static_cast<const W*>(args.weight.data) + tile * k * 16;
  const RowBlocks blocks{rows.end - rows.begin, kRows};
  for (int64_t at = 0; at < k; at += kDepth) {
    const int64_t depth = std::min(kDepth, k - at);
    const float* w = nullptr;
    int64_t w_stride = k * 16;
    if constexpr (sizeof(W) == sizeof(float)) {
      w = weights + at * 16;
    } else {
      widen_block<S, kTiles>(weights + at * 16, k * 16, depth, scratch.block);
      w = scratch.block;
      w_stride = depth * 16;
    }
    for (int64_t b = 0; b < blocks.count(); ++b) {
      const int64_t begin = blocks.begin(b);
      multiply_rows<FloatStep<S, float>, kRows, kTiles>(
          static_cast<int>(blocks.begin(b + 1) - begin),
          static_cast<const float*>(x.data) + begin * x.stride + at, x.stride, w, w_stride, depth,
          at > 0, {}, scratch.sums + begin * kTiles * 16);
    }
  }
  finish_block<S>(args, rows.begin, rows.end - rows.begin, tile, kTiles, scratch.sums);
}

template <class S, class W, int kTiles>
void many_tiles(const LinearArgs& args, const Matrix& x, Range rows, Range tiles,
                const ManyScratch& scratch) {
  for (; tiles.end - tiles.begin >= kTiles; tiles.begin += kTiles) {
    many_block<S, W, kTiles>(args, x, rows, tiles.begin, scratch);
  }
  if constexpr (kTiles > 1) many_tiles<S, W, kTiles / 2>(args, x, rows, tiles, scratch);
}

template <class S, class W>
void linear_many_rows(const LinearArgs& args, const LinearShare& share, const Team& team) {
  const int64_t row_floats = (args.weight.k + 15) / 16 * 16 + S::kTileBlock * 16;
  const int64_t most = std::max<int64_t>(S::kRowBlock, kPanelFloats / row_floats);
  auto* block = reinterpret_cast<float*>(team.scratch);
  float* sums = block + S::kTileBlock * kDepth * 16;
  float* panel = sums + most * S::kTileBlock * 16;
  const RowBlocks panels{share.rows.end - share.rows.begin, most};
  for (int64_t p = 0; p < panels.count(); ++p) {
    const Range rows{share.rows.begin + panels.begin(p), share.rows.begin + panels.begin(p + 1)};
    const Matrix x = widen_rows<S>(args.in, rows, args.weight.k, panel);
    many_tiles<S, W, S::kTileBlock>(args, x, rows, share.tiles, {sums, block});
  }
}

}  // namespace refrain::kernels
