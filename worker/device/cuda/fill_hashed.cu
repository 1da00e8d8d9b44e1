// Made-up weights, hashed on the device. Bound by integer arithmetic: three 64-bit products an
// element, far below the bandwidth of memory and still 8B elements in tens of milliseconds.

#include "worker/device/cuda/fill_hashed.h"

namespace refrain::worker {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 4096;

__device__ uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(BFloat16* to, float value) { *to = to_bfloat16(value); }

// Equal bits to the host: no product and sum are fused.
template <class Element>
__global__ void fill_hashed(kernels::HashedRows rows) {
  Element* to = static_cast<Element*>(rows.to);
  const int64_t count = rows.rows * rows.cols;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count;
       at += stride) {
    const int64_t row = at / rows.cols;
    const int64_t element = rows.first + row * rows.stride + (at - row * rows.cols);
    const uint64_t bits = mix(rows.base + static_cast<uint64_t>(element));
    const float uniform = static_cast<float>(static_cast<int64_t>(bits) >> 40) * 0x1p-23f;
    store(to + at, __fadd_rn(rows.offset, __fmul_rn(rows.scale, uniform)));
  }
}

}  // namespace

cudaError_t launch_fill_hashed(cudaStream_t stream, const kernels::HashedRows& rows) {
  const int64_t blocks = (rows.rows * rows.cols + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
  if (rows.dtype == DType::kBFloat16) {
    fill_hashed<BFloat16><<<grid, kThreads, 0, stream>>>(rows);
  } else {
    fill_hashed<float><<<grid, kThreads, 0, stream>>>(rows);
  }
  return cudaGetLastError();
}

}  // namespace refrain::worker
