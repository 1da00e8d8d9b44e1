// rope_kv_write: one warp a head of a token. Few bytes and one round trip: latency bound in decode
// (8B, H200: 2.0 us for 1 token, 4.6 us for 128). Its 2-byte accesses are not measured in prefill.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kPairs = 4;  // of 32: rotary_dim <= 256
constexpr int kRest = 8;   // of 32: head_dim - rotary_dim <= 256

// A head in registers: pairs (p, p + half) for p = lane + 32 j, and the columns past rotary_dim.
struct Head {
  float a[kPairs], b[kPairs], rest[kRest];
};

// Calls f(value, column) for every column that this lane holds.
template <class F>
__device__ void for_each_column(Head& head, int32_t dim, int32_t rotary, F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, half = rotary / 2;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int p = lane + 32 * j;
    if (p >= half) continue;
    f(head.a[j], p);
    f(head.b[j], half + p);
  }
#pragma unroll
  for (int j = 0; j < kRest; ++j) {
    const int p = rotary + lane + 32 * j;
    if (p < dim) f(head.rest[j], p);
  }
}

__device__ void normalise(Head& head, int32_t dim, int32_t rotary, const float* norm, float eps) {
  float squares = 0;
  for_each_column(head, dim, rotary, [&](float& x, int) { squares = fmaf(x, x, squares); });
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  for_each_column(head, dim, rotary, [&](float& x, int c) { x = x * scale * norm[c]; });
}

__device__ void rotate(Head& head, int32_t rotary, const float* cos_sin) {
  const int lane = static_cast<int>(threadIdx.x) % 32, half = rotary / 2;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int p = lane + 32 * j;
    if (p >= half) continue;
    const float cos = cos_sin[p], sin = cos_sin[half + p], a = head.a[j], b = head.b[j];
    head.a[j] = a * cos - b * sin;
    head.b[j] = b * cos + a * sin;
  }
}

__global__ void __launch_bounds__(kWarps * 32) rope_kernel(RopeKvWriteArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int64_t token = blockIdx.y;
  const int32_t h = static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= live_rows(args.rows) || h >= args.q_heads + 2 * args.kv_heads) return;
  const int32_t dim = args.head_dim;
  const bool is_q = h < args.q_heads, is_k = !is_q && h < args.q_heads + args.kv_heads;
  const int32_t rotary = is_q || is_k ? args.rotary_dim : 0;  // values are copied as they are
  const int64_t from = token * args.qkv.stride + int64_t{h} * dim;
  Head head;
  for_each_column(head, dim, rotary, [&](float& x, int c) {
    x = load_element(args.qkv.data, args.qkv.dtype, from + c);
  });
  const float* norm = is_q ? args.q_norm : is_k ? args.k_norm : nullptr;
  if (norm != nullptr) normalise(head, dim, rotary, norm, args.eps);
  if (rotary > 0) {
    rotate(head, rotary, args.cos_sin + int64_t{args.positions[token]} * args.rotary_dim);
  }
  if (is_q) {
    for_each_column(head, dim, rotary, [&](float& x, int c) {
      store_element(args.qkv.data, args.qkv.dtype, from + c, x);
    });
    return;
  }
  const int64_t slot = args.kv_slots[token];
  const int64_t block = slot / args.block_size, offset = slot % args.block_size;
  const int32_t kv_head = h - args.q_heads - (is_k ? 0 : args.kv_heads);
  const int64_t row =
      ((block * 2 + (is_k ? 0 : 1)) * args.kv_heads + kv_head) * args.block_size + offset;
  for_each_column(head, dim, rotary, [&](float& x, int c) {
    store_element(args.cache, args.cache_dtype, row * dim + c, x);
  });
}

}  // namespace

void rope_kv_write(StreamRef stream, const RopeKvWriteArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.q_heads + 2 * args.kv_heads, kWarps)),
                    static_cast<unsigned>(args.rows.padded));
  shape.threads = kWarps * 32;
  launch<&rope_kernel>(stream, "rope_kv_write", shape, args);
}

}  // namespace refrain::kernels
