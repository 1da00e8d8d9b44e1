#pragma once
// Decode on tensor cores for not too many requests: a request's few tokens times the query heads of
// a KV head are one tile of 16 queries; the keys are split over a cluster of blocks and the blocks'
// four warps; bound by memory. attention_mma.cu launches it for queries that are rotated and keys
// that are all in the cache, rope_attention_mma.cu for those that a linear has just made.

#include <type_traits>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/rope_columns.cuh"

namespace refrain::kernels {

inline constexpr int32_t kShareKeys = 16;
inline constexpr int kDecodeWarps = 4;

// Of three stages two blocks fit a multiprocessor, of two stages three: clusters that would fill
// all places of the former do not find theirs, and wait for others to end.
template <int kDim, int kStages>
using DecodeAttend = Attend<kDim, true, kDecodeWarps, kStages>;

// Whether a row of `tokens` tokens belongs to the decode kernel.
__host__ __device__ inline bool is_short(int32_t tokens, int32_t group) {
  return tokens * group <= kWarpQueries;
}

// Writes zeros to padded tokens: block `part` of `parts` of a KV head.
static __device__ void clear_padding(const AttentionArgs& args, int32_t kv_head, int32_t part,
                                     int32_t parts) {
  const int32_t cols = args.q_heads / args.kv_heads * args.head_dim;
  auto* out = static_cast<__nv_bfloat16*>(args.out.data);
  for (int32_t t = live_rows(args.tokens) + part; t < args.tokens.padded; t += parts) {
    for (int32_t c = static_cast<int32_t>(threadIdx.x); c < cols;
         c += static_cast<int32_t>(blockDim.x)) {
      out[t * args.out.stride + int64_t{kv_head} * cols + c] = __float2bfloat16_rn(0.0f);
    }
  }
}

// The new token of a request and KV head, rotated: its queries, its key and its value.
template <int kDim>
struct NewToken {
  static constexpr int kUnits = kDim / 8;         // of 16 bytes
  static constexpr int kQueryUnits = kUnits + 1;  // a row; spreads rows over the banks
  uint4 q[kMaxFusedGroup * kQueryUnits];
  uint4 kv[2 * kUnits];

  __device__ uint32_t query_pair(int query, int col) const {
    return reinterpret_cast<const uint32_t*>(q + query * kQueryUnits)[col / 2];
  }

  // All threads of the block; visible to them after a barrier.
  __device__ void load(const RopeKvWriteArgs& rope, const Columns<kDim>& cols, int32_t row,
                       int32_t kv_head) {
    const int32_t group = rope.q_heads / rope.kv_heads;
    const auto* qkv = static_cast<const __nv_bfloat16*>(rope.qkv.data) + row * rope.qkv.stride;
    const auto load_head = [&](int32_t head, int32_t col) {
      return __ldcg(reinterpret_cast<const uint4*>(qkv + int64_t{head} * kDim + col));
    };
    const int of_lane = static_cast<int>(threadIdx.x) / Columns<kDim>::kLanes;
    const int unit = static_cast<int>(threadIdx.x) % kUnits;
    constexpr int kHeads = kDecodeWarps * Columns<kDim>::kKeys;  // at once
    // The query heads, then the key, then the value.
#pragma unroll 1
    for (int h = of_lane; h - of_lane < group + 2; h += kHeads) {
      const int32_t head = h < group    ? kv_head * group + h
                           : h == group ? rope.q_heads + kv_head
                                        : rope.q_heads + rope.kv_heads + kv_head;
      const bool turns = h <= group, is_q = h < group;
      const uint4 own = h < group + 2 ? load_head(head, cols.first) : uint4{};
      const uint4 other = turns ? load_head(head, cols.partner) : uint4{};
      float x[8];
      cols.rotate(own, other, is_q ? rope.q_norm : rope.k_norm, rope.eps, x);
      if (is_q) {
        q[h * kQueryUnits + unit] = pack8(x);
      } else if (h < group + 2) {
        kv[(h - group) * kUnits + unit] = turns ? pack8(x) : own;
      }
    }
  }
};

// Key and value of the new token to the cache and, as key `at` of this warp's, to shared memory.
template <class Attend, class Fresh>
__device__ void put(const Attend& attend, const Fresh& fresh, __nv_bfloat16* cache, int32_t at,
                    uint32_t keys) {
  constexpr int kUnits = Fresh::kUnits;
  for (int u = Attend::lane(); u < 2 * kUnits; u += 32) {
    const bool is_value = u >= kUnits;
    const int unit = u % kUnits;
    const uint4 word = fresh.kv[u];
    const uint32_t to =
        keys + ((is_value ? Attend::kTileKeys : 0) + at) * Attend::kRowBytes + unit * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
    *reinterpret_cast<uint4*>(cache + (is_value ? attend.values_at() : 0) + unit * 8) = word;
  }
  __syncwarp();
}

// What a launch of attention has, and of rope_attention.
__device__ inline const AttentionArgs& attention_of(const AttentionArgs& args) { return args; }
__device__ inline const AttentionArgs& attention_of(const RopeAttentionArgs& args) {
  return args.attention;
}

// grid: (splits, KV heads, requests), a cluster along the splits.
template <int kDim, int kStages, class Args>
__global__ void __launch_bounds__(DecodeAttend<kDim, kStages>::kThreads, kStages == 2 ? 3 : 2)
    decode_kernel(const __grid_constant__ Args of_launch, bool beside) {
  constexpr bool kRope = std::is_same_v<Args, RopeAttentionArgs>;
  extern __shared__ __align__(16) uint8_t shared[];
  const auto rank = static_cast<int32_t>(blockIdx.x), splits = static_cast<int32_t>(gridDim.x);
  // Where a block's own loads are most of its time, the successor's stream of weights would delay
  // those of the new token.
  const bool early = !beside && (!kRope || splits <= 2);
  if (early) let_successor_start();
  // Read before the wait: lengths, tables and the keys of earlier steps. prepare_inputs wrote them,
  // and a linear, which starts its successor only when all before it have ended, stands between.
  const AttentionArgs& args = attention_of(of_launch);
  const auto kv_head = static_cast<int32_t>(blockIdx.y), row = static_cast<int32_t>(blockIdx.z);
  const int32_t group = args.q_heads / args.kv_heads;
  const int32_t first = __ldcg(args.inputs.query_start + row);
  const int32_t tokens = __ldcg(args.inputs.query_start + row + 1) - first;
  const int32_t length = __ldcg(args.inputs.seq_lens + row);
  const int32_t slot = __ldcg(args.inputs.row_slot + row);
  const bool live = row < (args.reqs.live == nullptr ? args.reqs.padded : __ldcg(args.reqs.live));
  if (!live || tokens == 0 || !is_short(tokens, group)) {  // the whole cluster
    wait_for_predecessor();
    if (!early) let_successor_start();
    if (rank == 0) clear_padding(args, kv_head, row, static_cast<int32_t>(gridDim.z));
    return;
  }
  QueryTile tile;
  tile.token = first;
  tile.tokens = tokens;
  tile.position = length - tokens;
  tile.kv_head = kv_head;
  tile.group = group;
  tile.blocks = args.block_table + int64_t{slot} * args.max_blocks;
  const KeySpan all = visible_keys(args, tile);
  // Shares of whole groups of 16 keys, as even as they can be.
  const int32_t groups = (all.end - all.begin + kShareKeys - 1) / kShareKeys;
  KeySpan mine;
  mine.begin = all.begin + groups * rank / splits * kShareKeys;
  mine.end = min(all.end, all.begin + groups * (rank + 1) / splits * kShareKeys);
  DecodeAttend<kDim, kStages> attend{args, tile, mine, shared};
  if constexpr (kRope) attend.stored = min(mine.end, tile.position);
  attend.prefetch(tile.position);
  if constexpr (kRope) {
    __shared__ NewToken<kDim> fresh;
    const Columns<kDim> cols(of_launch.rope, tile.position);
    auto* cache = static_cast<__nv_bfloat16*>(of_launch.rope.cache) +
                  int64_t{attend.cache_row(tile.position, attend.block_of(tile.position))} * kDim;
    wait_for_predecessor();
    if (rank == 0) clear_padding(args, kv_head, row, static_cast<int32_t>(gridDim.z));
    attend.fetch_first();
    fresh.load(of_launch.rope, cols, row, kv_head);
    __syncthreads();
    if (!early) let_successor_start();
    attend.load_queries(
        [&](int query, int col) { return query < group ? fresh.query_pair(query, col) : 0; });
    attend.attend([&](int32_t from, uint32_t keys) {
      const int32_t at = tile.position - from;
      if (at >= 0 && at < decltype(attend)::kWarpKeys) put(attend, fresh, cache, at, keys);
    });
  } else {
    wait_for_predecessor();
    if (!early) let_successor_start();
    if (rank == 0) clear_padding(args, kv_head, row, static_cast<int32_t>(gridDim.z));
    attend.run();
  }
  attend.merge_warps();
  attend.merge_cluster(splits);
}

// Blocks of a cluster that share a request's keys: enough to fill the device when few requests and
// heads do not, at most 16 and no more than the longest context has tiles.
inline int decode_splits(const AttentionArgs& args, int sm_count) {
  const int64_t units = int64_t{args.reqs.padded} * args.kv_heads;
  const int64_t longest = int64_t{args.max_blocks} * args.block_size;
  int splits = 1;
  while (splits < 16 && units * splits < sm_count && splits * 64 < longest) splits *= 2;
  return splits;
}

template <int kDim, int kStages, class Args>
void launch_decode_stages(StreamRef stream, const char* name, const Args& args,
                          const AttentionArgs& attention, int splits, bool beside) {
  using A = DecodeAttend<kDim, kStages>;
  LaunchShape shape;
  shape.cluster = splits;
  shape.grid = dim3(static_cast<unsigned>(splits), static_cast<unsigned>(attention.kv_heads),
                    static_cast<unsigned>(attention.reqs.padded));
  shape.threads = A::kThreads;
  shape.shared_bytes = A::kSharedBytes;
  launch<&decode_kernel<kDim, kStages, Args>, A::kSharedBytes, true>(stream, name, shape, args,
                                                                     beside);
}

// beside: the next kernel runs beside this one, and needs what the one before has written.
template <int kDim, class Args>
void launch_decode(StreamRef stream, const char* name, const Args& args,
                   const AttentionArgs& attention, bool beside = false) {
  const int64_t units = int64_t{attention.reqs.padded} * attention.kv_heads;
  const int sm_count = launcher(stream).sm_count, splits = decode_splits(attention, sm_count);
  if (splits > 1 && units * splits > sm_count)
    return launch_decode_stages<kDim, 2>(stream, name, args, attention, splits, beside);
  launch_decode_stages<kDim, 3>(stream, name, args, attention, splits, beside);
}

// All that a batch of another size would take: no request waits for a kernel to load.
template <int kDim, class Args>
void load_decode(const char* name) {
  load_kernel<&decode_kernel<kDim, 2, Args>, DecodeAttend<kDim, 2>::kSharedBytes, true>(name);
  load_kernel<&decode_kernel<kDim, 3, Args>, DecodeAttend<kDim, 3>::kSharedBytes, true>(name);
}

}  // namespace refrain::kernels
