#pragma once
// The inner loop of attention_mma.cu: a tile of queries against a span of keys, which come with
// their values through cp.async into a ring of tiles of 64.

#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/attention_math.cuh"

namespace refrain::kernels {

inline constexpr int kCopyKeys = 16;  // that a warp copies for a stage

// Tokens [token, token + tokens) of one request, from `position` on, times the `group` query heads
// of a KV head. Query q is token q / group, head q % group.
struct QueryTile {
  int32_t token = 0, tokens = 0, position = 0, kv_head = 0, group = 1;
  const int32_t* blocks = nullptr;  // the request's block table

  __device__ int32_t queries() const { return tokens * group; }
  __device__ int32_t position_of(int32_t query) const { return position + query / group; }
};

// The positions that any query of the tile sees.
__device__ inline KeySpan visible_keys(const AttentionArgs& args, const QueryTile& tile) {
  KeySpan span;
  if (args.sliding_window > 0) span.begin = max(0, tile.position - args.sliding_window + 1);
  span.end = tile.position + tile.tokens;
  return span;
}

// Blocks of kWarps warps, rings of kStages tiles of 16 keys a warp. kSplit: the block's warps share
// 16 queries and split the keys of a stage; else each warp has 16 queries of its own and sees all
// keys.
template <int kDim, bool kSplit, int kWarps, int kStages>
struct Attend : WarpSoftmax<kDim, kSplit ? kCopyKeys : kCopyKeys * kWarps> {
  static constexpr int kTileKeys = kCopyKeys * kWarps;  // of a stage
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kQueries = kSplit ? kWarpQueries : kWarpQueries * kWarps;
  static constexpr int kWarpKeys = kSplit ? kCopyKeys : kTileKeys;
  using Math = WarpSoftmax<kDim, kWarpKeys>;
  using Math::acc, Math::highest, Math::lane, Math::q, Math::sum;
  using Math::kDimTiles, Math::kRowBytes, Math::kScoreTiles;
  static constexpr int kStageBytes = 2 * kTileKeys * kRowBytes;  // keys, then values
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // After the last stage: the warps' sums, then the block's (float): [16][kDim] and two of [16].
  static constexpr int kPartial = kWarpQueries * kDim + 2 * kWarpQueries;
  static_assert(kDim % 16 == 0 && (kWarps + 1) * kPartial * 4 <= kSharedBytes || !kSplit);

  const AttentionArgs& args;
  const QueryTile& tile;
  KeySpan visible;  // keys outside are neither read nor seen
  int32_t stored;   // visible keys from here on are not in the cache: visible.end, or less
  uint8_t* shared;
  int started = 0;    // stages that prefetch() filled
  int32_t block = 0;  // of this lane's position of the next stage

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int first_query() { return kSplit ? 0 : warp() * kWarpQueries; }
  __device__ static int first_key() { return kSplit ? warp() * kWarpKeys : 0; }

  __device__ Attend(const AttentionArgs& a, const QueryTile& t, KeySpan v, uint8_t* memory)
      : args(a), tile(t), visible(v), stored(v.end), shared(memory) {
    look_up(visible.begin);
  }

  // Element (query, column) as a bit pattern; queries past the tile read as 0.
  __device__ uint32_t query_pair(int query, int col) const {
    if (query >= tile.queries()) return 0;
    const int64_t head = int64_t{tile.kv_head} * tile.group + query % tile.group;
    const auto* p = static_cast<const uint16_t*>(args.q.data) +
                    (tile.token + query / tile.group) * args.q.stride + head * kDim + col;
    if (reinterpret_cast<uintptr_t>(p) % 4 == 0) return *reinterpret_cast<const uint32_t*>(p);
    return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 16;
  }

  // pair(query, col): as query_pair().
  template <class Pair>
  __device__ void load_queries(const Pair& pair) {
    const int row = first_query() + lane() / 4, col = lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      q[k][0] = pair(row, k * 16 + col);
      q[k][1] = pair(row + 8, k * 16 + col);
      q[k][2] = pair(row, k * 16 + col + 8);
      q[k][3] = pair(row + 8, k * 16 + col + 8);
    }
  }
  __device__ void load_queries() {
    load_queries([this](int query, int col) { return query_pair(query, col); });
  }

  // The position whose place this lane looks up, of the 64 from `chunk` on.
  __device__ static int32_t place(int32_t chunk) {
    constexpr int kKeys = kCopyKeys;
    return chunk + warp() * kKeys + lane() % kKeys;
  }
  __device__ bool is_copied(int32_t position) const {
    return position >= visible.begin && position < stored;
  }
  __device__ int32_t block_of(int32_t position) const {
    return __ldcg(tile.blocks + position / args.block_size);
  }
  // Reads the block of the next stage's position, one stage ahead of its use.
  __device__ void look_up(int32_t chunk) {
    if (const int32_t position = place(chunk); is_copied(position)) block = block_of(position);
  }
  // The row of the cache, of kDim elements, that has the key of a position in block `of`; and how
  // many elements further its value is.
  __device__ int32_t cache_row(int32_t position, int32_t of) const {
    return (of * 2 * args.kv_heads + tile.kv_head) * args.block_size + position % args.block_size;
  }
  __device__ int64_t values_at() const { return int64_t{args.kv_heads} * args.block_size * kDim; }

  // Starts the copy of the keys and values of positions [chunk, chunk + 64), 16 of them by each
  // warp. A lane looks up the place of one position for all that copy it.
  __device__ void fetch(int32_t chunk, int stage) {
    constexpr int kUnits = kDim / 8;  // 16-byte pieces of a row
    constexpr int kKeys = kCopyKeys;
    const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                      stage * kStageBytes + warp() * kKeys * kRowBytes;
    const auto* cache = static_cast<const __nv_bfloat16*>(args.cache);
    int32_t own = -1;
    if (const int32_t position = place(chunk); is_copied(position))
      own = cache_row(position, block);
    look_up(chunk + kTileKeys);
#pragma unroll
    for (int e = lane(); e < kKeys * kUnits; e += 32) {
      const int key = e / kUnits, unit = e % kUnits;
      const int32_t row = __shfl_sync(~0u, own, key);
      const auto* from = cache + int64_t{max(row, 0)} * kDim + unit * 8;
      const uint32_t to = base + key * kRowBytes + unit * 16;
      copy_async(to, from, row >= 0);
      copy_async(to + kTileKeys * kRowBytes, from + values_at(), row >= 0);
    }
  }

  __device__ int32_t chunks() const {
    return (visible.end - visible.begin + kTileKeys - 1) / kTileKeys;
  }

  // Before the wait for the previous kernel: the first stages, as far as their keys lie below
  // position `stable`, written in earlier steps.
  __device__ void prefetch(int32_t stable) {
    started = 0;
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < chunks() && min(visible.begin + (s + 1) * kTileKeys, visible.end) <= stable) {
        fetch(visible.begin + s * kTileKeys, s);
        started = s + 1;
      }
    }
  }

  // What prefetch() has left of the first stages.
  __device__ void fetch_first() {
    const int32_t chunks = this->chunks();
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s >= started && s < chunks) fetch(visible.begin + s * kTileKeys, s);
      commit_copies();
    }
  }

  __device__ void run() {
    fetch_first();
    load_queries();
    attend([](int32_t, uint32_t) {});
  }
  // arrived(position, keys): this warp's keys from `position` on are at the shared address `keys`.
  template <class Arrived>
  __device__ void attend(const Arrived& arrived) {
    const KeySpan span = visible;
    const int32_t chunks = this->chunks();
    this->clear();
    KeySpan seen[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t position = tile.position_of(first_query() + lane() / 4 + half * 8);
      if (args.sliding_window > 0) seen[half].begin = max(0, position - args.sliding_window + 1);
      seen[half].end = min(position + 1, span.end);
    }
    const float scale = args.scale * kLog2E;
    const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    for (int32_t c = 0; c < chunks; ++c) {
      wait_copies<kStages - 2>();
      if constexpr (kSplit) {
        __syncwarp();  // a warp copied the keys that it uses
      } else {
        __syncthreads();  // the stage is full, and the one before it is free
      }
      const int32_t next = c + kStages - 1;
      if (next < chunks) fetch(span.begin + next * kTileKeys, next % kStages);
      commit_copies();
      const uint32_t keys = base + c % kStages * kStageBytes + first_key() * kRowBytes;
      const int32_t position = span.begin + c * kTileKeys + first_key();
      arrived(position, keys);
      float s[kScoreTiles][4];
      this->score(keys, s);
      this->soften(position, seen, scale, s);
      this->add_values(keys + kTileKeys * kRowBytes, s);
    }
    this->finish();
    wait_copies<0>();
    __syncthreads();
  }

  __device__ void store(int query, int col, float value) const {
    const int64_t head = int64_t{tile.kv_head} * tile.group + query % tile.group;
    auto* out = static_cast<__nv_bfloat16*>(args.out.data);
    out[(tile.token + query / tile.group) * args.out.stride + head * kDim + col] =
        __float2bfloat16_rn(value);
  }

  // The queries of this warp alone.
  __device__ void write() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query() + lane() / 4 + half * 8;
      if (query >= tile.queries()) continue;
      const float inverse = 1.0f / sum[half];
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        const int col = d * 8 + lane() % 4 * 2;
        store(query, col, acc[d][half * 2] * inverse);
        store(query, col + 1, acc[d][half * 2 + 1] * inverse);
      }
    }
  }

  // A partial result: sums [16][kDim], then maxima [16], then totals [16].
  __device__ float* partial(int i) const { return reinterpret_cast<float*>(shared) + i * kPartial; }

  // Combines `count` (at most kMost) partials, get(i) the i-th: out(query, col, value, top, total)
  // for the tile's queries. Unrolled, so that reads from other blocks are under way together.
  template <int kMost, class Get, class Out>
  __device__ void combine(int count, int first, int step, Get get, Out out) const {
    for (int e = first; e < tile.queries() * kDim; e += step) {
      const int query = e / kDim;
      float highs[kMost], totals[kMost], values[kMost], top = -INFINITY, total = 0, value = 0;
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        const float* p = get(i < count ? i : 0);
        highs[i] = i < count ? p[kWarpQueries * kDim + query] : -INFINITY;
        totals[i] = p[kWarpQueries * (kDim + 1) + query];
        values[i] = p[e];
      }
#pragma unroll
      for (int i = 0; i < kMost; ++i) top = fmaxf(top, highs[i]);
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        const float weight = highs[i] == -INFINITY ? 0.0f : exp2f(highs[i] - top);
        total += weight * totals[i];
        value += weight * values[i];
      }
      out(query, e % kDim, value, top, total);
    }
  }

  // The four warps' partials become partial kWarps.
  __device__ void merge_warps() {
    float* mine = partial(warp());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= tile.queries()) continue;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        mine[query * kDim + d * 8 + lane() % 4 * 2] = acc[d][half * 2];
        mine[query * kDim + d * 8 + lane() % 4 * 2 + 1] = acc[d][half * 2 + 1];
      }
      if (lane() % 4 == 0) {
        mine[kWarpQueries * kDim + query] = highest[half];
        mine[kWarpQueries * (kDim + 1) + query] = sum[half];
      }
    }
    __syncthreads();
    float* all = partial(kWarps);
    combine<kWarps>(
        kWarps, static_cast<int>(threadIdx.x), kThreads, [this](int i) { return partial(i); },
        [all](int query, int col, float value, float top, float total) {
          all[query * kDim + col] = value;
          all[kWarpQueries * kDim + query] = top;
          all[kWarpQueries * (kDim + 1) + query] = total;
        });
    __syncthreads();
  }

  // The cluster's blocks share the queries' columns and write the output.
  __device__ void merge_cluster(int splits) {
    auto cluster = cooperative_groups::this_cluster();
    const auto write = [this](int query, int col, float value, float, float total) {
      store(query, col, value / total);
    };
    const auto get = [&](int i) { return cluster.map_shared_rank(partial(kWarps), i); };
    const int first = static_cast<int>(cluster.block_rank() * kThreads + threadIdx.x);
    if (splits > 1) cluster.sync();
    if (splits <= 4) {
      combine<4>(splits, first, splits * kThreads, get, write);
    } else {
      combine<16>(splits, first, splits * kThreads, get, write);
    }
    if (splits > 1) cluster.sync();  // no block leaves while another reads its sums
  }
};

}  // namespace refrain::kernels
