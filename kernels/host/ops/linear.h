#pragma once
// out = in · weightᵀ (+ bias) (+ residual) on kTiled16 weights. A block of rows × 16-output tiles
// stays in registers while k runs from 0 to K, so an output's sum has one order for every M, every
// thread count and every block shape. Few rows: bound by memory (the weights, read once); many
// rows: by arithmetic, with the weights of a tile block in L2 and a row block of inputs in L1.

#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

// One step along k on float inputs. kInputs inputs (and 16 * kInputs weights a tile) a step.
template <class S, class W>
struct FloatStep;

template <class S>
struct FloatStep<S, float> {
  using Simd = S;
  using X = float;
  using W = float;
  static constexpr int kInputs = 1;
  template <int kRows, int kTiles>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                  typename S::Reg (&acc)[kRows][kTiles]) {
    typename S::Reg in[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) in[r] = S::broadcast(x[r * x_stride]);
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      const auto weight = S::load(w + t * w_stride);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][t] = S::fma(in[r], weight, acc[r][t]);
    }
  }
};

template <class S>
struct FloatStep<S, BFloat16> {
  using Simd = S;
  using X = float;
  using W = BFloat16;
  static constexpr int kInputs = 2;
  template <int kRows, int kTiles>
  static void run(const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                  typename S::Reg (&acc)[kRows][kTiles]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      const auto even = S::load_even(w + t * w_stride);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][t] = S::fma(S::broadcast(x[r * x_stride]), even, acc[r][t]);
      }
      const auto odd = S::load_odd(w + t * w_stride);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][t] = S::fma(S::broadcast(x[r * x_stride + 1]), odd, acc[r][t]);
      }
    }
  }
};

inline constexpr int64_t kPrefetchBytes =
    2048;  // how far ahead of use a tile's weights are asked for

// sums[r][t][16] of kRows rows and kTiles tiles.
template <class Step, int kRows, int kTiles>
void multiply_block(const typename Step::X* x, int64_t x_stride, const typename Step::W* w,
                    int64_t w_stride, int64_t k, float* sums) {
  using S = typename Step::Simd;
  typename S::Reg acc[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) acc[r][t] = S::zero();
  }
  for (int64_t i = 0; i < k; i += Step::kInputs) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      _mm_prefetch(reinterpret_cast<const char*>(w + t * w_stride) + kPrefetchBytes, _MM_HINT_T0);
    }
    Step::template run<kRows, kTiles>(x, x_stride, w, w_stride, acc);
    x += Step::kInputs;
    w += 16 * Step::kInputs;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) S::store(sums + (r * kTiles + t) * 16, acc[r][t]);
  }
}

template <class S>
void finish_block(const LinearArgs& args, int64_t row, int rows, int64_t tile, int tiles,
                  const float* sums) {
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tiles; ++t) {
      const int64_t col = (tile + t) * 16;
      const int64_t n = args.weight.n - col;
      auto value = S::load(sums + (r * tiles + t) * 16);
      if (args.bias != nullptr) value = S::add(value, load_float16<S>(args.bias + col, n));
      if (args.residual.data != nullptr) {
        value = S::add(value, load16<S>(args.residual, row + r, col, n));
      }
      store16<S>(args.out, row + r, col, n, value);
    }
  }
}

// A block of `rows` × kTiles: finds the instance for the number of rows.
template <class Step, int kRows, int kTiles>
void run_block(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, int64_t row,
               int rows, int64_t tile) {
  using S = typename Step::Simd;
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_block<Step, kRows - 1, kTiles>(args, x, x_stride, row, rows, tile);
  }
  alignas(64) float sums[kRows * kTiles * 16];
  const int64_t tile_size = args.weight.k * 16;
  const auto* w = static_cast<const typename Step::W*>(args.weight.data) + tile * tile_size;
  multiply_block<Step, kRows, kTiles>(x, x_stride, w, tile_size, args.weight.k, sums);
  finish_block<S>(args, row, rows, tile, kTiles, sums);
}

// Rows [rows.begin, rows.end), of which x is the first, times kTiles tiles.
template <class Step, int kTiles>
void run_rows(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, Range rows,
              int64_t tile) {
  constexpr int kRows = Step::Simd::kRowBlock;
  const int64_t blocks = (rows.end - rows.begin + kRows - 1) / kRows;
  for (int64_t b = 0; b < blocks; ++b) {  // blocks as even as they go
    const int64_t begin = (rows.end - rows.begin) * b / blocks;
    const int64_t end = (rows.end - rows.begin) * (b + 1) / blocks;
    run_block<Step, kRows, kTiles>(args, x + begin * x_stride, x_stride, rows.begin + begin,
                                   static_cast<int>(end - begin), tile);
  }
}

template <class Step, int kTiles>
void run_tiles(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, Range rows,
               Range tiles) {
  while (tiles.end - tiles.begin >= kTiles) {
    run_rows<Step, kTiles>(args, x, x_stride, rows, tiles.begin);
    tiles.begin += kTiles;
  }
  if constexpr (kTiles > 1) run_tiles<Step, kTiles / 2>(args, x, x_stride, rows, tiles);
}

// What one thread of the team computes: columns first, rows as well when tiles are few.
struct LinearShare {
  Range rows;
  Range tiles;
};

template <class S>
LinearShare linear_share(int64_t rows, int64_t n, const Team& team) {
  const int64_t tiles = (n + 15) / 16;
  const bool many_rows = rows >= 12;
  const int64_t least = many_rows ? 4 : 1;  // tiles a thread
  const int64_t col_parts = std::clamp<int64_t>(tiles / least, 1, team.size);
  const int64_t row_parts = many_rows ? std::max<int64_t>(1, team.size / col_parts) : 1;
  if (team.rank >= col_parts * row_parts) return {};
  const Team by_col{static_cast<int>(team.rank % col_parts), static_cast<int>(col_parts)};
  const Team by_row{static_cast<int>(team.rank / col_parts), static_cast<int>(row_parts)};
  return {share_of(rows, by_row), share_of(tiles, by_col)};
}

// Inputs as float: read in place, or widened into scratch a panel of rows at a time.
template <class S, class W>
void linear_float(const LinearArgs& args, const LinearShare& share, const Team& team) {
  using Step = FloatStep<S, W>;
  if (args.in.dtype == DType::kFloat32) {
    const auto* x = static_cast<const float*>(args.in.data) + share.rows.begin * args.in.stride;
    return run_tiles<Step, S::kTileBlock>(args, x, args.in.stride, share.rows, share.tiles);
  }
  const int64_t k = args.weight.k;
  const int64_t stride = (k + 15) / 16 * 16;
  const int64_t fits = static_cast<int64_t>(team.scratch_bytes / sizeof(float)) / stride;
  const int64_t step = std::max<int64_t>(1, std::min<int64_t>(fits, 96));
  const Matrix panel{team.scratch, DType::kFloat32, stride};
  for (int64_t row = share.rows.begin; row < share.rows.end; row += step) {
    const Range rows{row, std::min(row + step, share.rows.end)};
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = 0; c < k; c += 16) {
        store16<S>(panel, r - row, c, k - c, load16<S>(args.in, r, c, k - c));
      }
    }
    run_tiles<Step, S::kTileBlock>(args, static_cast<const float*>(panel.data), stride, rows,
                                   share.tiles);
  }
}

// Any layout, one output at a time in k order: the fallback for row-major weights.
template <class S, class W>
void linear_row_major(const LinearArgs& args, const LinearShare& share) {
  const auto get = [](const Matrix& m, int64_t row, int64_t col) {
    const int64_t at = row * m.stride + col;
    return m.dtype == DType::kFloat32 ? static_cast<const float*>(m.data)[at]
                                      : to_float(static_cast<const BFloat16*>(m.data)[at]);
  };
  const auto widen = [](auto w) {
    if constexpr (sizeof(w) == 2) {
      return to_float(w);
    } else {
      return w;
    }
  };
  const int64_t end = std::min(share.tiles.end * 16, args.weight.n);
  for (int64_t row = share.rows.begin; row < share.rows.end; ++row) {
    for (int64_t n = share.tiles.begin * 16; n < end; ++n) {
      const W* w = static_cast<const W*>(args.weight.data) + n * args.weight.k;
      float sum = 0;
      for (int64_t k = 0; k < args.weight.k; ++k) sum += get(args.in, row, k) * widen(w[k]);
      if (args.bias != nullptr) sum += args.bias[n];
      if (args.residual.data != nullptr) sum += get(args.residual, row, n);
      const int64_t at = row * args.out.stride + n;
      if (args.out.dtype == DType::kFloat32) {
        static_cast<float*>(args.out.data)[at] = sum;
      } else {
        static_cast<BFloat16*>(args.out.data)[at] = to_bfloat16(sum);
      }
    }
  }
}

template <class S>
void linear(const LinearArgs& args, const Team& team) {
  const LinearShare share = linear_share<S>(live_rows(args.rows), args.weight.n, team);
  const bool bf16 = args.weight.dtype == DType::kBFloat16;
  if (args.weight.layout == WeightLayout::kRowMajor) {
    return bf16 ? linear_row_major<S, BFloat16>(args, share)
                : linear_row_major<S, float>(args, share);
  }
  bf16 ? linear_float<S, BFloat16>(args, share, team) : linear_float<S, float>(args, share, team);
}

}  // namespace refrain::kernels
