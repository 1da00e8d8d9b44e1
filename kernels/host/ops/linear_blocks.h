#pragma once
// What linear is made of, on kTiled16 weights. A block of rows × 16-output tiles
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
    typename S::Reg weights[kTiles];
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) weights[t] = S::load_even(w + t * w_stride);
    add_products<kRows, kTiles>(x, x_stride, weights, acc);
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) weights[t] = S::load_odd(w + t * w_stride);
    add_products<kRows, kTiles>(x + 1, x_stride, weights, acc);
  }

 private:
  template <int kRows, int kTiles>
  static void add_products(const X* x, int64_t x_stride, typename S::Reg (&weights)[kTiles],
                           typename S::Reg (&acc)[kRows][kTiles]) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto in = S::broadcast(x[r * x_stride]);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) acc[r][t] = S::fma(in, weights[t], acc[r][t]);
    }
  }
};

inline constexpr int64_t kPrefetchBytes =
    2048;  // how far ahead of use a tile's weights are asked for

// sums[r][t][16] of kRows rows and kTiles tiles over k inputs; `resume`: added to what is there.
template <class Step, int kRows, int kTiles>
void multiply_block(const typename Step::X* x, int64_t x_stride, const typename Step::W* w,
                    int64_t w_stride, int64_t k, bool resume, Prefetch prefetch, float* sums) {
  using S = typename Step::Simd;
  typename S::Reg acc[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      acc[r][t] = resume ? S::load(sums + (r * kTiles + t) * 16) : S::zero();
    }
  }
  for (int64_t i = 0; i < k; i += Step::kInputs) {
    for (int line = 0; line < prefetch.lines; ++line) {
      _mm_prefetch(prefetch.at + line * prefetch.stride, _MM_HINT_T0);
    }
    prefetch.at += prefetch.advance;
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
void finish_block(const LinearArgs& args, int64_t row, int64_t rows, int64_t tile, int tiles,
                  const float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
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

// multiply_block of `rows` <= kRows rows: finds the instance.
template <class Step, int kRows, int kTiles>
void multiply_rows(int rows, const typename Step::X* x, int64_t x_stride, const typename Step::W* w,
                   int64_t w_stride, int64_t k, bool resume, const Prefetch& prefetch,
                   float* sums) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return multiply_rows<Step, kRows - 1, kTiles>(rows, x, x_stride, w, w_stride, k, resume,
                                                    prefetch, sums);
    }
  }
  multiply_block<Step, kRows, kTiles>(x, x_stride, w, w_stride, k, resume, prefetch, sums);
}

// One block of rows reads each tile as it comes, a little ahead. Of several, each asks for its part
// of the next tiles, so that memory is read evenly while all of them compute.
template <class Step, int kTiles>
Prefetch plan_prefetch(const typename Step::W* w, int64_t k, int64_t block, int64_t blocks) {
  const int64_t tile_bytes = k * 16 * static_cast<int64_t>(sizeof(typename Step::W));
  const char* at = reinterpret_cast<const char*>(w);
  if (blocks == 1) return {at + kPrefetchBytes, tile_bytes, 64, kTiles};
  const int64_t next_lines = kTiles * tile_bytes / 64, steps = k / Step::kInputs;
  const int64_t lines = (next_lines + blocks * steps - 1) / (blocks * steps);
  return {at + kTiles * tile_bytes + block * lines * steps * 64, 64, lines * 64,
          static_cast<int>(lines)};
}

// Rows [rows.begin, rows.end), of which x is the first, times kTiles tiles.
template <class Step, int kRows, int kTiles>
void run_rows(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, Range rows,
              int64_t tile) {
  alignas(64) float sums[kRows * kTiles * 16];
  const int64_t k = args.weight.k;
  const auto* w = static_cast<const typename Step::W*>(args.weight.data) + tile * k * 16;
  const RowBlocks blocks{rows.end - rows.begin, kRows};
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const int64_t begin = blocks.begin(b);
    const auto count = static_cast<int>(blocks.begin(b + 1) - begin);
    multiply_rows<Step, kRows, kTiles>(count, x + begin * x_stride, x_stride, w, k * 16, k, false,
                                       plan_prefetch<Step, kTiles>(w, k, b, blocks.count()), sums);
    finish_block<typename Step::Simd>(args, rows.begin + begin, count, tile, kTiles, sums);
  }
}

template <class Step, int kRows, int kTiles>
void run_tiles(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, Range rows,
               Range tiles) {
  for (; tiles.end - tiles.begin >= kTiles; tiles.begin += kTiles) {
    run_rows<Step, kRows, kTiles>(args, x, x_stride, rows, tiles.begin);
  }
  if constexpr (kTiles > 1) run_tiles<Step, kRows, kTiles / 2>(args, x, x_stride, rows, tiles);
}

// Few rows: more tiles at once, so that memory is read in more streams.
template <class Step>
void run_share(const LinearArgs& args, const typename Step::X* x, int64_t x_stride, Range rows,
               Range tiles) {
  using S = typename Step::Simd;
  if (rows.end - rows.begin <= S::kFewRows) {
    return run_tiles<Step, S::kFewRows, S::kFewTiles>(args, x, x_stride, rows, tiles);
  }
  run_tiles<Step, S::kRowBlock, S::kTileBlock>(args, x, x_stride, rows, tiles);
}

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

// Rows [rows.begin, rows.end) of `in` as float, in place or widened into `panel`.
template <class S>
Matrix widen_rows(const Matrix& in, Range rows, int64_t cols, float* panel) {
  if (in.dtype == DType::kFloat32) {
    return {static_cast<float*>(in.data) + rows.begin * in.stride, in.dtype, in.stride};
  }
  const Matrix wide{panel, DType::kFloat32, (cols + 15) / 16 * 16};
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < cols; c += 16) {
      store16<S>(wide, r - rows.begin, c, cols - c, load16<S>(in, r, c, cols - c));
    }
  }
  return wide;
}

template <class S, class W>
void linear_few_rows(const LinearArgs& args, const LinearShare& share, const Team& team) {
  const int64_t stride = (args.weight.k + 15) / 16 * 16;
  const int64_t fits = static_cast<int64_t>(team.scratch_bytes / sizeof(float)) / stride;
  for (Range rows{share.rows.begin, 0}; rows.begin < share.rows.end; rows.begin = rows.end) {
    rows.end = std::min(rows.begin + fits, share.rows.end);
    const Matrix x =
        widen_rows<S>(args.in, rows, args.weight.k, reinterpret_cast<float*>(team.scratch));
    run_share<FloatStep<S, W>>(args, static_cast<const float*>(x.data), x.stride, rows,
                               share.tiles);
  }
}

}  // namespace refrain::kernels
