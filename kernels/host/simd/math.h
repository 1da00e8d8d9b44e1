#pragma once
// exp of sixteen lanes, the same polynomial on every instruction set.

#include "kernels/host/simd/prelude.h"

namespace refrain::kernels {

// e^x within 2 ulp for x in [-87.3, 88.3], clamped outside; NaN stays NaN; e^0 is exactly 1.
// x = n ln 2 + r with |r| <= ln 2 / 2, then the degree-7 minimax polynomial of Cephes' expf.
template <class S>
typename S::Reg exp(typename S::Reg x) {
  using Reg = typename S::Reg;
  x = S::min(S::broadcast(88.3762626647949f), S::max(S::broadcast(-87.3365447505f), x));
  const Reg magic = S::broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Reg n = S::sub(S::add(S::mul(x, S::broadcast(1.44269504088896341f)), magic), magic);
  Reg r = S::fma(n, S::broadcast(-0.693359375f), x);
  r = S::fma(n, S::broadcast(2.12194440e-4f), r);
  Reg p = S::broadcast(1.9875691500e-4f);
  p = S::fma(p, r, S::broadcast(1.3981999507e-3f));
  p = S::fma(p, r, S::broadcast(8.3334519073e-3f));
  p = S::fma(p, r, S::broadcast(4.1665795894e-2f));
  p = S::fma(p, r, S::broadcast(1.6666665459e-1f));
  p = S::fma(p, r, S::broadcast(5.0000001201e-1f));
  p = S::fma(p, S::mul(r, r), S::add(r, S::broadcast(1.0f)));
  return S::mul(p, S::pow2(n));
}

}  // namespace refrain::kernels
