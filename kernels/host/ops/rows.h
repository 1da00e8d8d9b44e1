#pragma once
// Reading and writing matrix rows sixteen columns at a time, whatever their element type.

#include "kernels/host/simd/prelude.h"

namespace refrain::kernels {

// Columns [col, col + min(n, 16)) of a row as float; lanes beyond n are 0.
template <class S>
typename S::Reg load16(const Matrix& m, int64_t row, int64_t col, int64_t n) {
  const int64_t at = row * m.stride + col;
  if (m.dtype == DType::kFloat32) {
    const auto* p = static_cast<const float*>(m.data) + at;
    return n >= 16 ? S::load(p) : S::load_n(p, static_cast<int>(n));
  }
  const auto* p = static_cast<const BFloat16*>(m.data) + at;
  return n >= 16 ? S::load(p) : S::load_n(p, static_cast<int>(n));
}

template <class S>
void store16(const Matrix& m, int64_t row, int64_t col, int64_t n, typename S::Reg value) {
  const int64_t at = row * m.stride + col;
  if (m.dtype == DType::kFloat32) {
    auto* p = static_cast<float*>(m.data) + at;
    n >= 16 ? S::store(p, value) : S::store_n(p, value, static_cast<int>(n));
    return;
  }
  auto* p = static_cast<BFloat16*>(m.data) + at;
  n >= 16 ? S::store(p, value) : S::store_n(p, value, static_cast<int>(n));
}

template <class S>
typename S::Reg load_float16(const float* p, int64_t n) {
  return n >= 16 ? S::load(p) : S::load_n(p, static_cast<int>(n));
}

}  // namespace refrain::kernels
