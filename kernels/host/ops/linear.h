#pragma once
// out = in · weightᵀ (+ bias) (+ residual): chooses how by the number of rows and the layout. Every
// way adds an output's products in the order of k with one fused multiply-add each (kScalar: a
// product, then a sum), so a row has the same bits in all of them (row-major weights aside).

#include "kernels/host/ops/linear_many.h"

namespace refrain::kernels {

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
  const bool many = share.rows.end - share.rows.begin >= kManyRows && args.weight.k <= kManyInputs;
  if (many) {
    return bf16 ? linear_many_rows<S, BFloat16>(args, share, team)
                : linear_many_rows<S, float>(args, share, team);
  }
  bf16 ? linear_few_rows<S, BFloat16>(args, share, team)
       : linear_few_rows<S, float>(args, share, team);
}

}  // namespace refrain::kernels
