#pragma once
// RMSNorm, and residual add fused with RMSNorm. One row a unit of work, two passes over the row
// (in L1 after the first): memory bound, a few microseconds a step.

#include "kernels/host/ops/rows.h"

namespace refrain::kernels {

// 1 / sqrt(mean square + eps) of a row from its sum of squares.
template <class S>
float inverse_rms(float sum_of_squares, int64_t cols, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(cols) + eps);
}

template <class S>
void normalise_row(const Matrix& in, const Matrix& out, int64_t row, int64_t cols,
                   const float* weight, float inverse) {
  const auto scale = S::broadcast(inverse);
  for (int64_t c = 0; c < cols; c += 16) {
    const auto x = S::mul(load16<S>(in, row, c, cols - c), scale);
    store16<S>(out, row, c, cols - c, S::mul(x, load_float16<S>(weight + c, cols - c)));
  }
}

template <class S>
void rms_norm(const RmsNormArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  for (int64_t row = range.begin; row < range.end; ++row) {
    auto squares = S::zero();
    for (int64_t c = 0; c < args.cols; c += 16) {
      const auto x = load16<S>(args.in, row, c, args.cols - c);
      squares = S::fma(x, x, squares);
    }
    normalise_row<S>(args.in, args.out, row, args.cols, args.weight,
                     inverse_rms<S>(S::sum(squares), args.cols, args.eps));
  }
}

template <class S>
void add_rms_norm(const AddRmsNormArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  for (int64_t row = range.begin; row < range.end; ++row) {
    auto squares = S::zero();
    for (int64_t c = 0; c < args.cols; c += 16) {
      const int64_t n = args.cols - c;
      store16<S>(args.residual, row, c, n,
                 S::add(load16<S>(args.residual, row, c, n), load16<S>(args.delta, row, c, n)));
      const auto x = load16<S>(args.residual, row, c, n);  // as rounded
      squares = S::fma(x, x, squares);
    }
    normalise_row<S>(args.residual, args.out, row, args.cols, args.weight,
                     inverse_rms<S>(S::sum(squares), args.cols, args.eps));
  }
}

}  // namespace refrain::kernels
