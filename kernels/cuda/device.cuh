#pragma once
// What every kernel here shares: programmatic dependent launch, rows of a Matrix read and written
// eight columns at a time whatever their type, reductions. Data that an earlier kernel wrote is
// read after wait_for_predecessor() and never through __restrict__ const pointers, which the
// compiler could hoist above it.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

#ifdef REFRAIN_PDL_TORTURE
// Up to 16 us, by block, warp and place: whoever reads too early is soon found out.
__device__ inline void sleep_a_while(uint32_t place) {
  uint32_t x = (blockIdx.x * 73856093u) ^ (blockIdx.y * 19349663u) ^ (blockIdx.z * 83492791u) ^
               (threadIdx.x / 32 * 2654435761u) ^ (place * 2246822519u);
  x = (x ^ (x >> 15)) * 2246822519u;
  __nanosleep((x ^ (x >> 13)) % 16384);
}
#else
__device__ inline void sleep_a_while(uint32_t /*place*/) {}
#endif

// Blocks until the kernels before this one have ended and their writes are visible. Every kernel
// calls it, so that the end of a kernel means the end of all before it.
__device__ inline void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  sleep_a_while(1);
}

// Lets the next kernel start once every block has come here. Small kernels call it first, so that
// the GEMV after them loads weights while the one before them ends; a GEMV calls it after the wait,
// so that no third one shares the multiprocessors with it.
__device__ inline void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  sleep_a_while(2);
}

__device__ inline int32_t live_rows(const Rows& rows) {
  return rows.live == nullptr ? rows.padded : min(*rows.live, rows.padded);
}

// f(row) for the live rows of this block: blockIdx.y and every gridDim.y-th after it (grid_y in
// launch.cuh).
template <class F>
__device__ inline void for_each_row(const Rows& rows, F f) {
  const int32_t live = live_rows(rows);
#pragma unroll 1
  for (int64_t row = blockIdx.y; row < live; row += gridDim.y) f(row);
}

__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline uint32_t pack_halves(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Eight bfloat16.
__device__ inline void unpack8(uint4 v, float (&x)[8]) {
  x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
  x[4] = low_half(v.z), x[5] = high_half(v.z), x[6] = low_half(v.w), x[7] = high_half(v.w);
}
__device__ inline uint4 pack8(const float (&x)[8]) {
  return make_uint4(pack_halves(x[0], x[1]), pack_halves(x[2], x[3]), pack_halves(x[4], x[5]),
                    pack_halves(x[6], x[7]));
}

// Eight floats, from a multiple of 16 bytes on.
__device__ inline void load_floats8(const float* from, float (&x)[8]) {
  const auto* p = reinterpret_cast<const float4*>(from);
  const float4 a = p[0], b = p[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// One element of float32 or bfloat16 data.
__device__ inline float load_element(const void* data, DType dtype, int64_t at) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[at]
                                  : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}
__device__ inline void store_element(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  }
}

// Eight columns of a row; beyond `n` they read as 0 and are not written. `wide`: every row starts
// at a multiple of 16 bytes (rows_are_wide in launch.cuh).
__device__ inline void load8(const Matrix& m, bool wide, int64_t row, int64_t col, int64_t n,
                             float (&x)[8]) {
  const int64_t at = row * m.stride + col;
  if (wide && n >= 8) {
    if (m.dtype == DType::kFloat32) {
      load_floats8(static_cast<const float*>(m.data) + at, x);
    } else {
      unpack8(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(m.data) + at), x);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i < n ? load_element(m.data, m.dtype, at + i) : 0.0f;
}

__device__ inline void store8(const Matrix& m, bool wide, int64_t row, int64_t col, int64_t n,
                              const float (&x)[8]) {
  const int64_t at = row * m.stride + col;
  if (wide && n >= 8) {
    if (m.dtype == DType::kFloat32) {
      auto* p = reinterpret_cast<float4*>(static_cast<float*>(m.data) + at);
      p[0] = make_float4(x[0], x[1], x[2], x[3]);
      p[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(m.data) + at) = pack8(x);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < n) store_element(m.data, m.dtype, at + i, x[i]);
  }
}

__device__ inline float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// The value as its type would hold it.
__device__ inline float rounded(float value, DType dtype) {
  return dtype == DType::kFloat32 ? value : __bfloat162float(__float2bfloat16_rn(value));
}

// Of a warp, or of kLanes neighbouring lanes each, to all of them.
template <int kLanes = 32>
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// The sum over the block, on every thread; `shared` holds 33 floats and is free after the call's
// last barrier has been passed by all.
__device__ inline float block_sum(float value, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  value = warp_sum(value);
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_sum(lane * 32 < static_cast<int>(blockDim.x) ? shared[lane] : 0.0f);
    if (lane == 0) shared[32] = value;
  }
  __syncthreads();
  return shared[32];
}

}  // namespace refrain::kernels
