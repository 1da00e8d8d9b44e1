#pragma once
// Sixteen float lanes in plain C++: no fused multiply-add, every lane computed alone, so that
// results compare across machines. The contract of all Simd structs: fma(a, b, c) = a * b + c;
// max(a, b) and min(a, b) give b when either is NaN; sum() adds lanes i and i+8, then 4, 2, 1.

#include "kernels/host/simd/prelude.h"

namespace refrain::kernels::host_scalar {

struct Simd {
  struct Reg {
    float v[16];
  };
  // Rows and 16-output tiles that linear keeps in registers; with kFewRows or fewer, kFewTiles.
  static constexpr int kRowBlock = 4;
  static constexpr int kTileBlock = 1;
  static constexpr int kFewRows = 1;
  static constexpr int kFewTiles = 1;

  static Reg broadcast(float x) {
    Reg r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static Reg zero() { return broadcast(0.0f); }
  static Reg load(const float* p) {
    Reg r;
    for (int i = 0; i < 16; ++i) r.v[i] = p[i];
    return r;
  }
  static Reg load(const BFloat16* p) {
    Reg r;
    for (int i = 0; i < 16; ++i) r.v[i] = to_float(p[i]);
    return r;
  }
  template <class T>
  static Reg load_n(const T* p, int n) {  // lanes n … 15 are 0
    T full[16] = {};
    for (int i = 0; i < n; ++i) full[i] = p[i];
    return load(full);
  }
  static void store(float* p, Reg a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static void store(BFloat16* p, Reg a) {
    for (int i = 0; i < 16; ++i) p[i] = to_bfloat16(a.v[i]);
  }
  template <class T>
  static void store_n(T* p, Reg a, int n) {
    T full[16];
    store(full, a);
    for (int i = 0; i < n; ++i) p[i] = full[i];
  }
  // A tile row of 16 outputs × 2 inputs: the even inputs, then the odd ones.
  static Reg load_even(const BFloat16* p) {
    Reg r;
    for (int i = 0; i < 16; ++i) r.v[i] = to_float(p[2 * i]);
    return r;
  }
  static Reg load_odd(const BFloat16* p) { return load_even(p + 1); }

  static Reg add(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  static Reg sub(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
    return a;
  }
  static Reg mul(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static Reg div(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] /= b.v[i];
    return a;
  }
  static Reg fma(Reg a, Reg b, Reg c) { return add(mul(a, b), c); }
  static Reg max(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static Reg min(Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
  }
  static Reg pow2(Reg n) {  // 2^n of integral lanes in [-126, 127]
    for (float& lane : n.v) {
      const auto exponent =
          static_cast<uint32_t>((lane == lane ? static_cast<int>(lane) : 0) + 127);
      lane = std::bit_cast<float>(exponent << 23);
    }
    return n;
  }
  // a where lo <= lane < hi, else b.
  static Reg select_range(int lo, int hi, Reg a, Reg b) {
    for (int i = 0; i < 16; ++i) {
      if (i >= lo && i < hi) b.v[i] = a.v[i];
    }
    return b;
  }
  static float sum(Reg a) {
    for (int step = 8; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
    }
    return a.v[0];
  }
  static float max_lane(Reg a) {
    for (int step = 8; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
    }
    return a.v[0];
  }
  // out[d * 16 + i] = rows[i][d] for d < 16.
  template <class T>
  static void transpose(const T* const* rows, int64_t offset, float* out) {
    for (int i = 0; i < 16; ++i) {
      const Reg r = load(rows[i] + offset);
      for (int d = 0; d < 16; ++d) out[d * 16 + i] = r.v[d];
    }
  }
};

}  // namespace refrain::kernels::host_scalar
