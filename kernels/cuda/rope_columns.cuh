#pragma once
// Heads of q and k, normed and rotated by warps whose lanes have eight columns each.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/device.cuh"

namespace refrain::kernels {

template <int kDim>
struct Columns {
  static constexpr int kLanes = kDim / 8;    // that share a key
  static constexpr int kKeys = 32 / kLanes;  // of a warp at once
  int32_t first, partner;                    // of this lane; the columns that rotate with them
  float cos[8], sin[8];  // sin with the sign it has for these columns; 1 and 0 where none rotate

  __device__ Columns(const RopeKvWriteArgs& rope, int32_t position) {
    first = static_cast<int32_t>(threadIdx.x) % kLanes * 8;
    const int32_t half = rope.rotary_dim / 2;
    const bool rotates = first < rope.rotary_dim, low = first < half;
    partner = !rotates ? first : low ? first + half : first - half;
    const float* angles = rope.cos_sin + int64_t{position} * rope.rotary_dim + min(first, partner);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      cos[i] = rotates ? angles[i] : 1.0f;
      sin[i] = !rotates ? 0.0f : low ? -angles[half + i] : angles[half + i];
    }
  }

  // This lane's columns of a head of q or k: normed, rotated and rounded as rope_kv_write does it.
  // All lanes of the warp; those that share a key have one head.
  __device__ void rotate(uint4 own, uint4 other, const float* norm, float eps,
                         float (&x)[8]) const {
    float y[8];
    unpack8(own, x);
    unpack8(other, y);
    if (norm != nullptr) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
#pragma unroll
      for (int offset = 1; offset < kLanes; offset *= 2) {
        squares += __shfl_xor_sync(~0u, squares, offset);
      }
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(kDim) + eps);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = x[i] * scale * norm[first + i];
        y[i] = y[i] * scale * norm[partner + i];
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded(x[i] * cos[i] + y[i] * sin[i], DType::kBFloat16);
  }
};

}  // namespace refrain::kernels
