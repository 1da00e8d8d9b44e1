// rope_kv_write: a token's heads, one round trip to memory. Of bfloat16 heads that rotate whole, a
// lane has 16 columns in two accesses of 16 bytes; others get a warp a head, element by element.
// 8B, H200, us for 1, 128 and 2048 tokens: 1.4, 2.6, 10.4; element by element 2.0, 4.9, 39.2.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kPairs = 4;  // of 32: rotary_dim <= 256
constexpr int kRest = 8;   // of 32: head_dim - rotary_dim <= 256
constexpr int kWideThreads = 128;

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

// Where the head's row of a token begins in the cache, in elements.
__device__ int64_t cache_row(const RopeKvWriteArgs& args, int64_t slot, int32_t h) {
  const int32_t at = h - args.q_heads, is_v = at >= args.kv_heads ? 1 : 0;
  const int64_t block = slot / args.block_size, offset = slot % args.block_size;
  const int64_t head = (block * 2 + is_v) * args.kv_heads + at - is_v * args.kv_heads;
  return (head * args.block_size + offset) * args.head_dim;
}

// Head h of a token, by a warp.
__device__ void rope_head(const RopeKvWriteArgs& args, int64_t token, int32_t h) {
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
  const int64_t row = cache_row(args, args.kv_slots[token], h);
  for_each_column(head, dim, rotary, [&](float& x, int c) {
    store_element(args.cache, args.cache_dtype, row + c, x);
  });
}

__global__ void __launch_bounds__(kWarps * 32) rope_kernel(RopeKvWriteArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int32_t h = static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (h >= args.q_heads + 2 * args.kv_heads) return;
  for_each_row(args.rows, [&](int64_t token) { rope_head(args, token, h); });
}

// kLanes lanes a head, each with the columns 8 lane … 8 lane + 7 of both of its halves.
template <int kLanes>
__global__ void __launch_bounds__(kWideThreads) rope_wide_kernel(RopeKvWriteArgs args) {
  constexpr int kDim = kLanes * 16, kHalf = kDim / 2;
  let_successor_start();
  const int32_t heads = args.q_heads + 2 * args.kv_heads;
  const uint32_t unit = (blockIdx.x * kWideThreads + threadIdx.x) / kLanes;
  const auto token = static_cast<int64_t>(unit / static_cast<uint32_t>(heads));
  const auto h = static_cast<int32_t>(unit % static_cast<uint32_t>(heads));
  const int first = static_cast<int>(threadIdx.x) % kLanes * 8;
  const bool is_q = h < args.q_heads, is_k = !is_q && h < args.q_heads + args.kv_heads;
  // Read before the wait, as in attention_decode.cuh: the step's counts, positions and slots.
  const bool inside = token < args.rows.padded;
  const int64_t position = inside ? __ldcg(args.positions + token) : 0;
  const int64_t slot = inside ? __ldcg(args.kv_slots + token) : 0;
  const bool live = token < live_rows(args.rows);  // else it stays, for the others' shuffles
  const float* norm = is_q ? args.q_norm : is_k ? args.k_norm : nullptr;
  float of_a[8] = {}, of_b[8] = {}, cos[8] = {}, sin[8] = {};
  if (norm != nullptr) {
    load_floats8(norm + first, of_a);
    load_floats8(norm + kHalf + first, of_b);
  }
  if (live && (is_q || is_k)) {
    const float* cos_sin = args.cos_sin + position * kDim + first;
    load_floats8(cos_sin, cos);
    load_floats8(cos_sin + kHalf, sin);
  }
  wait_for_predecessor();
  auto* from = static_cast<__nv_bfloat16*>(args.qkv.data) + token * args.qkv.stride +
               int64_t{h} * kDim + first;
  float a[8] = {}, b[8] = {};
  if (live) {
    unpack8(*reinterpret_cast<const uint4*>(from), a);
    unpack8(*reinterpret_cast<const uint4*>(from + kHalf), b);
  }
  if (args.q_norm != nullptr || args.k_norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(a[i], a[i], fmaf(b[i], b[i], squares));
    squares = warp_sum<kLanes>(squares);
    if (norm != nullptr) {
      const float scale = 1.0f / sqrtf(squares / kDim + args.eps);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        a[i] = a[i] * scale * of_a[i];
        b[i] = b[i] * scale * of_b[i];
      }
    }
  }
  if (!live) return;
  if (is_q || is_k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = a[i];
      a[i] = x * cos[i] - b[i] * sin[i];
      b[i] = b[i] * cos[i] + x * sin[i];
    }
  }
  auto* to =
      is_q ? from : static_cast<__nv_bfloat16*>(args.cache) + cache_row(args, slot, h) + first;
  *reinterpret_cast<uint4*>(to) = pack8(a);
  *reinterpret_cast<uint4*>(to + kHalf) = pack8(b);
}

bool can_be_wide(const RopeKvWriteArgs& args) {
  return args.qkv.dtype == DType::kBFloat16 && args.cache_dtype == DType::kBFloat16 &&
         args.rotary_dim == args.head_dim && rows_are_wide(args.qkv) && is_wide(args.cache) &&
         is_wide(args.cos_sin) && is_wide(args.q_norm) && is_wide(args.k_norm);
}

template <int kLanes>
void launch_wide(StreamRef stream, const RopeKvWriteArgs& args) {
  const int64_t lanes = int64_t{args.rows.padded} * (args.q_heads + 2 * args.kv_heads) * kLanes;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(lanes, kWideThreads)));
  shape.threads = kWideThreads;
  launch<&rope_wide_kernel<kLanes>>(stream, "rope_kv_write", shape, args);
}

}  // namespace

void rope_kv_write(StreamRef stream, const RopeKvWriteArgs& args) {
  if (can_be_wide(args)) {
    if (args.head_dim == 64) return launch_wide<4>(stream, args);
    if (args.head_dim == 128) return launch_wide<8>(stream, args);
    if (args.head_dim == 256) return launch_wide<16>(stream, args);
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(args.q_heads + 2 * args.kv_heads, kWarps)),
                    grid_y(args.rows.padded));
  shape.threads = kWarps * 32;
  launch<&rope_kernel>(stream, "rope_kv_write", shape, args);
}

}  // namespace refrain::kernels
