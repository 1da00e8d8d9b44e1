// rope_attention: one new token a request, at most kFewRows requests; more are for
// rope_attention_mma.cu. A cluster of blocks shares the keys of a
// request and KV head; a lane holds 8 columns of a key, so that a warp reads several keys at once
// into registers. The keys of earlier steps are on their way before the wait for the projection of
// q, k and v; what is left after it is one round trip for them, their rotation, and the merge:
// every block pushes its part of the result to the blocks that write it. The lanes whose key is the
// new token's write it to the cache.
//
// The kernel runs once between two others of a layer, so its instructions must stay in the cache
// beside theirs: loops over what need not be in registers are not unrolled.

#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <utility>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/rope_attention.cuh"

namespace refrain::kernels {
namespace {

using namespace rope_attend;

// grid: (splits, KV heads, requests), a cluster along the splits.
template <int kDim, int kGroup>
__global__ void __launch_bounds__(kThreads, kGroup > 4 ? 2 : 3)
    rope_attention_kernel(const __grid_constant__ RopeAttentionArgs args, uint32_t reciprocal) {
  using Cols = Columns<kDim>;
  constexpr int kTurnKeys = kWarps * kLoads * Cols::kKeys, kElements = kGroup * kDim;
  __shared__ Shared<kDim, kGroup> shared;
  const RopeKvWriteArgs& rope = args.rope;
  const AttentionArgs& attention = args.attention;
  // Read before the wait: what prepare_inputs wrote, and the keys of earlier steps. A linear, which
  // starts its successor only when all before it have ended, stands between.
  const auto kv_head = static_cast<int32_t>(blockIdx.y), row = static_cast<int32_t>(blockIdx.z);
  const auto rank = static_cast<int32_t>(blockIdx.x), splits = static_cast<int32_t>(gridDim.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto* qkv = static_cast<const __nv_bfloat16*>(rope.qkv.data) + row * rope.qkv.stride;
  auto* out = static_cast<__nv_bfloat16*>(attention.out.data) + row * attention.out.stride +
              int64_t{kv_head} * kElements;
  const int32_t live =
      attention.reqs.live == nullptr ? attention.reqs.padded : __ldcg(attention.reqs.live);
  if (row >= live) {  // the whole cluster
    let_successor_start();
    wait_for_predecessor();
    for (int e = static_cast<int>(threadIdx.x); rank == 0 && e < kElements; e += kThreads) {
      out[e] = __float2bfloat16_rn(0.0f);
    }
    return;
  }
  // Blocks push to each other only once all have begun: waited for below, long after.
  auto cluster = cooperative_groups::this_cluster();
  auto begun = cluster.barrier_arrive();
  const int32_t position = __ldcg(attention.inputs.seq_lens + row) - 1;
  const int64_t head_elements = int64_t{attention.block_size} * kDim;
  const Pages pages{attention.block_table +
                        int64_t{__ldcg(attention.inputs.row_slot + row)} * attention.max_blocks,
                    attention.block_size, reciprocal, attention.kv_heads * head_elements, kDim};
  const int32_t begin =
      attention.sliding_window > 0 ? max(0, position - attention.sliding_window + 1) : 0;
  const int32_t share = (position - begin + splits) / splits;
  const int32_t first = begin + rank * share, end = min(position + 1, first + share);
  const Cols cols(rope, position);
  auto* cache = static_cast<__nv_bfloat16*>(rope.cache) + kv_head * head_elements + cols.first;

  const auto key_of = [&](int32_t from, int u) {
    return from + (u * kWarps + warp) * Cols::kKeys + lane / Cols::kLanes;
  };
  uint4 keys[kLoads], values[kLoads];
  const auto fetch = [&](int32_t from) {
    int64_t at[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      at[u] = key_of(from, u) < min(end, position) ? pages.place(key_of(from, u)) : -1;
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      keys[u] = values[u] = make_uint4(0, 0, 0, 0);
      if (at[u] < 0) continue;
      keys[u] = __ldcg(reinterpret_cast<const uint4*>(cache + at[u]));
      values[u] = __ldcg(reinterpret_cast<const uint4*>(cache + at[u] + pages.values_at));
    }
  };
  fetch(first);
  const int64_t new_place = pages.place(position);
  wait_for_predecessor();

  // The heads of q, and after them that of k, by the lanes that would share a key.
  const auto load_head = [&](int32_t head, int32_t col) {
    return __ldcg(reinterpret_cast<const uint4*>(qkv + int64_t{head} * kDim + col));
  };
  const uint4 new_value = load_head(rope.q_heads + rope.kv_heads + kv_head, cols.first);
#pragma unroll 1
  for (int h = warp * Cols::kKeys + lane / Cols::kLanes; h - lane / Cols::kLanes < kGroup + 1;
       h += kWarps * Cols::kKeys) {
    const bool is_q = h < kGroup;
    const int32_t head = is_q ? kv_head * kGroup + h : rope.q_heads + kv_head;
    float x[8];
    cols.rotate(load_head(head, cols.first), load_head(head, cols.partner),
                is_q ? rope.q_norm : rope.k_norm, rope.eps, x);
    if (is_q) {
      const float scale = attention.scale * kLog2E;
      auto* to = reinterpret_cast<float4*>(shared.q[h] + cols.first);
      to[0] = make_float4(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale);
      to[1] = make_float4(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale);
    } else if (h == kGroup) {
      shared.key[lane % Cols::kLanes] = pack8(x);
    }
  }
  __syncthreads();
  let_successor_start();  // whose stream of weights would have delayed the loads above

  Accumulator<kDim, kGroup> acc;
  acc.begin(shared, cols.first);
#pragma unroll 1
  for (int32_t from = first; from < end;) {
    bool valid[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      valid[u] = key_of(from, u) < end;
      if (!valid[u] || key_of(from, u) != position) continue;
      keys[u] = shared.key[lane % Cols::kLanes];
      values[u] = new_value;
      *reinterpret_cast<uint4*>(cache + new_place) = keys[u];
      *reinterpret_cast<uint4*>(cache + new_place + pages.values_at) = new_value;
    }
    acc.add(keys, values, valid);
    from += kTurnKeys;
    if (from < end) fetch(from);
  }
  acc.end(shared, cols.first);
  cluster.barrier_wait(std::move(begun));
  __syncthreads();
  if (threadIdx.x < kGroup) {
    const int h = static_cast<int>(threadIdx.x);
    float top = -INFINITY, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.highest[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(shared.highest[w][h], top);
      shared.weight[w][h] = weight;
      all += weight * shared.total[w][h];
    }
    shared.top[h] = top;
    shared.all[h] = all;
  }
  __syncthreads();
  const int slice = (kElements + splits - 1) / splits;  // elements a block writes
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x); e < kElements; e += kThreads) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += shared.weight[w][e / kDim] * shared.sum[w][e];
    if (splits == 1) {
      out[e] = __float2bfloat16_rn(value / shared.all[e / kDim]);
    } else {
      const int to = e / slice;
      *cluster.map_shared_rank(&shared.parts[rank * slice + e - to * slice], to) = value;
    }
  }
  if (splits == 1) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < splits * kGroup; i += kThreads) {
    const int h = i % kGroup;
    *cluster.map_shared_rank(&shared.part_top[rank][h], i / kGroup) = shared.top[h];
    *cluster.map_shared_rank(&shared.part_all[rank][h], i / kGroup) = shared.all[h];
  }
  cluster.sync();
  // Four lanes an element, each every fourth part.
  const int quarter = lane % 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 4; i - lane / 4 < slice; i += kThreads / 4) {
    const int e = rank * slice + i, h = min(e, kElements - 1) / kDim;
    const bool mine = i < slice && e < kElements;
    float top = -INFINITY, all = 0, value = 0;
#pragma unroll 4
    for (int k = quarter; k < splits; k += 4) top = fmaxf(top, shared.part_top[k][h]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
#pragma unroll 4
    for (int k = quarter; k < splits; k += 4) {
      const float weight = weight_of(shared.part_top[k][h], top);
      all += weight * shared.part_all[k][h];
      if (mine) value += weight * shared.parts[k * slice + i];
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      all += __shfl_xor_sync(~0u, all, offset);
      value += __shfl_xor_sync(~0u, value, offset);
    }
    if (mine && quarter == 0) out[e] = __float2bfloat16_rn(value / all);
  }
}

// Blocks of a cluster: enough to fill the device when few requests and heads do not.
int splits_for(const AttentionArgs& args, int sm_count) {
  const int64_t units = int64_t{args.reqs.padded} * args.kv_heads;
  const int64_t longest = int64_t{args.max_blocks} * args.block_size;
  int splits = 1;
  while (splits < kMaxSplits && units * splits < sm_count && int64_t{splits} * 32 < longest) {
    splits *= 2;
  }
  return splits;
}

template <int kDim, int kGroup>
void launch_group(StreamRef stream, const RopeAttentionArgs& args) {
  LaunchShape shape;
  shape.cluster = splits_for(args.attention, launcher(stream).sm_count);
  shape.grid =
      dim3(static_cast<unsigned>(shape.cluster), static_cast<unsigned>(args.attention.kv_heads),
           static_cast<unsigned>(args.attention.reqs.padded));
  shape.threads = kThreads;
  const auto block_size = static_cast<uint64_t>(args.attention.block_size);
  const auto reciprocal =
      static_cast<uint32_t>(((uint64_t{1} << 31) + block_size - 1) / block_size);
  launch<&rope_attention_kernel<kDim, kGroup>, 0, true>(stream, "rope_attention", shape, args,
                                                        reciprocal);
}

template <int kDim>
void launch_dim(StreamRef stream, const RopeAttentionArgs& args) {
  static_assert(kMaxFusedGroup == 8);
  switch (args.attention.q_heads / args.attention.kv_heads) {
    case 1:
      return launch_group<kDim, 1>(stream, args);
    case 2:
      return launch_group<kDim, 2>(stream, args);
    case 3:
      return launch_group<kDim, 3>(stream, args);
    case 4:
      return launch_group<kDim, 4>(stream, args);
    case 5:
      return launch_group<kDim, 5>(stream, args);
    case 6:
      return launch_group<kDim, 6>(stream, args);
    case 7:
      return launch_group<kDim, 7>(stream, args);
    case 8:
      return launch_group<kDim, 8>(stream, args);
  }
}

}  // namespace

bool can_rope_attend(int64_t head_dim, int64_t rotary_dim) {
  return (head_dim == 64 || head_dim == 128) && rotary_dim > 0 && rotary_dim % 16 == 0;
}

void rope_attention(StreamRef stream, const RopeAttentionArgs& args) {
  if (args.attention.reqs.padded > kFewRows) return rope_attention_mma(stream, args);
  if (args.attention.head_dim == 64) return launch_dim<64>(stream, args);
  launch_dim<128>(stream, args);
}

}  // namespace refrain::kernels
