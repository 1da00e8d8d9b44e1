#pragma once
// Sixteen float lanes as two AVX2 registers, with fused multiply-add. Contract: scalar.h.

#include "kernels/host/simd/prelude.h"

namespace refrain::kernels::host_avx2 {

struct Simd {
  struct Reg {
    __m256 lo, hi;
  };
  static constexpr int kRowBlock = 3;
  static constexpr int kTileBlock = 2;
  static constexpr int kFewRows = 1;
  static constexpr int kFewTiles = 4;

  static Reg broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Reg zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Reg load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Reg load(const BFloat16* p) { return {widen(p), widen(p + 8)}; }
  template <class T>
  static Reg load_n(const T* p, int n) {
    T full[16] = {};
    for (int i = 0; i < n; ++i) full[i] = p[i];
    return load(full);
  }
  static void store(float* p, Reg a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static void store(BFloat16* p, Reg a) {
    const __m256i packed = _mm256_packus_epi32(round_bits(a.lo), round_bits(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  template <class T>
  static void store_n(T* p, Reg a, int n) {
    T full[16];
    store(full, a);
    for (int i = 0; i < n; ++i) p[i] = full[i];
  }
  static Reg load_even(const BFloat16* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(raw(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(raw(p + 16), 16))};
  }
  static Reg load_odd(const BFloat16* p) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(raw(p), high)),
            _mm256_castsi256_ps(_mm256_and_si256(raw(p + 16), high))};
  }

  static Reg add(Reg a, Reg b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static Reg sub(Reg a, Reg b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static Reg mul(Reg a, Reg b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static Reg div(Reg a, Reg b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static Reg fma(Reg a, Reg b, Reg c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static Reg max(Reg a, Reg b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static Reg min(Reg a, Reg b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static Reg pow2(Reg n) { return {pow2_half(n.lo), pow2_half(n.hi)}; }
  static Reg select_range(int lo, int hi, Reg a, Reg b) {
    return {_mm256_blendv_ps(b.lo, a.lo, range_mask(lo, hi, 0)),
            _mm256_blendv_ps(b.hi, a.hi, range_mask(lo, hi, 8))};
  }
  static float sum(Reg a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static float max_lane(Reg a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  template <class T>
  static void transpose(const T* const* rows, int64_t offset, float* out) {
    alignas(32) float row[16];
    for (int i = 0; i < 16; ++i) {
      store(row, load(rows[i] + offset));
      for (int d = 0; d < 16; ++d) out[d * 16 + i] = row[d];
    }
  }

 private:
  static __m256i raw(const BFloat16* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256 widen(const BFloat16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static __m256i round_bits(__m256 a) {  // to_bfloat16 of eight lanes, in the low halves
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
  }
  static __m256 pow2_half(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static __m256 range_mask(int lo, int hi, int first) {
    const __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_castsi256_ps(
        _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane)));
  }
};

}  // namespace refrain::kernels::host_avx2
