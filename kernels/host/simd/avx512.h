#pragma once
// Sixteen float lanes in one AVX-512 register (F, BW, VL, DQ). Contract: scalar.h.

#include "kernels/host/simd/prelude.h"

namespace refrain::kernels::host_avx512 {

struct Simd {
  using Reg = __m512;
  static constexpr int kRowBlock = 8;
  static constexpr int kTileBlock = 3;
  static constexpr int kFewRows = 4;
  static constexpr int kFewTiles = 4;

  static Reg broadcast(float x) { return _mm512_set1_ps(x); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const BFloat16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Reg load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static Reg load_n(const BFloat16* p, int n) {
    return widen(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static void store(BFloat16* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a));
  }
  static void store_n(float* p, Reg a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }
  static void store_n(BFloat16* p, Reg a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), narrow(a));
  }
  static Reg load_even(const BFloat16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static Reg load_odd(const BFloat16* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg pow2(Reg n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static Reg select_range(int lo, int hi, Reg a, Reg b) {
    const auto below = [](int n) { return n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1u; };
    return _mm512_mask_blend_ps(static_cast<__mmask16>(below(hi) & ~below(lo)), b, a);
  }
  static float sum(Reg a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static float max_lane(Reg a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  // Three rounds of shuffles: 4-byte and 8-byte pairs inside 16-byte groups, then the groups.
  static void transpose(const float* const* rows, int64_t offset, float* out) {
    __m512 a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      const __m512 even = load(rows[i] + offset), odd = load(rows[i + 1] + offset);
      a[i] = _mm512_unpacklo_ps(even, odd);
      a[i + 1] = _mm512_unpackhi_ps(even, odd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const __m512d x = _mm512_castps_pd(a[i + j]), y = _mm512_castps_pd(a[i + 2 + j]);
        b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
        b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
      }
    }
    // b[4g + c] holds, in group q, column 4q + c of rows 4g … 4g+3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512 lo02 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
      const __m512 lo13 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
      const __m512 hi02 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
      const __m512 hi13 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
      store(out + (0 + c) * 16, _mm512_shuffle_f32x4(lo02, hi02, 0x88));
      store(out + (4 + c) * 16, _mm512_shuffle_f32x4(lo13, hi13, 0x88));
      store(out + (8 + c) * 16, _mm512_shuffle_f32x4(lo02, hi02, 0xdd));
      store(out + (12 + c) * 16, _mm512_shuffle_f32x4(lo13, hi13, 0xdd));
    }
  }

  // The same with columns in pairs of 4 bytes, rows i and i + 8 side by side: 8 registers, not 16.
  static void transpose(const BFloat16* const* rows, int64_t offset, float* out) {
    const auto half = [&](int i) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + offset));
    };
    __m512i a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      const __m512i even = _mm512_inserti64x4(_mm512_castsi256_si512(half(i)), half(i + 8), 1);
      const __m512i odd = _mm512_inserti64x4(_mm512_castsi256_si512(half(i + 1)), half(i + 9), 1);
      a[i] = _mm512_unpacklo_epi32(even, odd);
      a[i + 1] = _mm512_unpackhi_epi32(even, odd);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + 2 + j]);
        b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + 2 + j]);
      }
    }
    // b[c] holds pair c of rows 0-3, pair 4 + c of rows 0-3, the same of rows 8-11; b[4 + c] of
    // rows 4-7 and 12-15.
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const __m512i pairs = _mm512_permutex2var_epi64(b[c % 4], c < 4 ? low : high, b[4 + c % 4]);
      store(out + 2 * c * 16, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
      store(out + (2 * c + 1) * 16, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
    }
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Reg widen(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static __m256i narrow(Reg a) {  // to_bfloat16 of every lane
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40)));
  }
};

}  // namespace refrain::kernels::host_avx512
