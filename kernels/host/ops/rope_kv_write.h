#pragma once
// Rotary embedding of q (in place) and k, optional RMSNorm over each head before it, and the write
// of k and v into the paged cache. One token a unit of work; memory bound, in L1.

#include "kernels/host/ops/norm.h"

namespace refrain::kernels {

// head[0 … head_dim) in float: norm, then rotation of pairs (i, i + rotary_dim / 2).
template <class S>
void norm_and_rotate(float* head, int64_t head_dim, int64_t rotary_dim, const float* cos_sin,
                     const float* norm, float eps) {
  Matrix row{head, DType::kFloat32, 0};
  if (norm != nullptr) {
    auto squares = S::zero();
    for (int64_t d = 0; d < head_dim; d += 16) {
      const auto x = load16<S>(row, 0, d, head_dim - d);
      squares = S::fma(x, x, squares);
    }
    normalise_row<S>(row, row, 0, head_dim, norm, inverse_rms<S>(S::sum(squares), head_dim, eps));
  }
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int64_t n = half - i;
    const auto x = load16<S>(row, 0, i, n), y = load16<S>(row, 0, half + i, n);
    const auto cos = load_float16<S>(cos_sin + i, n), sin = load_float16<S>(cos_sin + half + i, n);
    store16<S>(row, 0, i, n, S::sub(S::mul(x, cos), S::mul(y, sin)));
    store16<S>(row, 0, half + i, n, S::add(S::mul(y, cos), S::mul(x, sin)));
  }
}

template <class S>
void rope_kv_write(const RopeKvWriteArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  const int64_t dim = args.head_dim;
  auto* head = reinterpret_cast<float*>(team.scratch);
  const Matrix head_row{head, DType::kFloat32, 0};
  const auto copy = [&](const Matrix& from, int64_t from_row, int64_t from_col, const Matrix& to,
                        int64_t to_row, int64_t to_col) {
    for (int64_t d = 0; d < dim; d += 16) {
      store16<S>(to, to_row, to_col + d, dim - d, load16<S>(from, from_row, from_col + d, dim - d));
    }
  };
  const Matrix cache{args.cache, args.cache_dtype, dim};  // a row: one token of one head
  for (int64_t t = range.begin; t < range.end; ++t) {
    const float* cos_sin = args.cos_sin + int64_t{args.positions[t]} * args.rotary_dim;
    for (int64_t h = 0; h < args.q_heads; ++h) {
      copy(args.qkv, t, h * dim, head_row, 0, 0);
      norm_and_rotate<S>(head, dim, args.rotary_dim, cos_sin, args.q_norm, args.eps);
      copy(head_row, 0, 0, args.qkv, t, h * dim);
    }
    const int64_t block = args.kv_slots[t] / args.block_size;
    const int64_t offset = args.kv_slots[t] % args.block_size;
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      copy(args.qkv, t, (args.q_heads + h) * dim, head_row, 0, 0);
      norm_and_rotate<S>(head, dim, args.rotary_dim, cos_sin, args.k_norm, args.eps);
      const int64_t k_row = (block * 2 * args.kv_heads + h) * args.block_size + offset;
      copy(head_row, 0, 0, cache, k_row, 0);
      const int64_t v_row = ((block * 2 + 1) * args.kv_heads + h) * args.block_size + offset;
      copy(args.qkv, t, (args.q_heads + args.kv_heads + h) * dim, cache, v_row, 0);
    }
  }
}

}  // namespace refrain::kernels
