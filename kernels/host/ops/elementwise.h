#pragma once
// add and silu_mul: one pass over rows, memory bound.

#include "kernels/host/ops/rows.h"
#include "kernels/host/simd/math.h"

namespace refrain::kernels {

template <class S>
void add(const AddArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  for (int64_t row = range.begin; row < range.end; ++row) {
    for (int64_t c = 0; c < args.cols; c += 16) {
      const int64_t n = args.cols - c;
      store16<S>(args.out, row, c, n,
                 S::add(load16<S>(args.a, row, c, n), load16<S>(args.b, row, c, n)));
    }
  }
}

// silu(x) = x / (1 + e^-x).
template <class S>
void silu_mul(const SiluMulArgs& args, const Team& team) {
  const Range range = share_of(live_rows(args.rows), team);
  const auto one = S::broadcast(1.0f);
  for (int64_t row = range.begin; row < range.end; ++row) {
    for (int64_t c = 0; c < args.cols; c += 16) {
      const int64_t n = args.cols - c;
      const auto gate = load16<S>(args.in, row, c, n);
      const auto up = load16<S>(args.in, row, args.cols + c, n);
      const auto silu = S::div(gate, S::add(one, exp<S>(S::sub(S::zero(), gate))));
      store16<S>(args.out, row, c, n, S::mul(silu, up));
    }
  }
}

}  // namespace refrain::kernels
