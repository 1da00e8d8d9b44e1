#pragma once
// The inner loop of attention_mma.cu: a tile of queries against a span of keys, by online softmax
// (Milakov and Gimelshein, 2018; FlashAttention-2's register layout). Keys and values come through
// cp.async into a ring of tiles of 64; products are mma.m16n8k16 with float32 accumulators.

#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {

inline constexpr int kTileKeys = 64;  // keys a stage
inline constexpr int kTileWarps = 4;
inline constexpr int kTileThreads = kTileWarps * 32;
inline constexpr int kWarpQueries = 16;                         // queries of an mma
inline constexpr int kTileQueries = kWarpQueries * kTileWarps;  // of a prefill block

// Tokens [token, token + tokens) of one request, from `position` on, times the `group` query heads
// of a KV head. Query q is token q / group, head q % group.
struct QueryTile {
  int32_t token = 0, tokens = 0, position = 0, kv_head = 0, group = 1;
  const int32_t* blocks = nullptr;  // the request's block table

  __device__ int32_t queries() const { return tokens * group; }
  __device__ int32_t position_of(int32_t query) const { return position + query / group; }
};

struct KeySpan {
  int32_t begin = 0, end = 0;  // positions
};

// The positions that any query of the tile sees.
__device__ inline KeySpan visible_keys(const AttentionArgs& args, const QueryTile& tile) {
  KeySpan span;
  if (args.sliding_window > 0) span.begin = max(0, tile.position - args.sliding_window + 1);
  span.end = tile.position + tile.tokens;
  return span;
}

// kSplit: the block's warps share 16 queries and split the keys of a stage; else each warp has 16
// queries of its own and sees all keys.
template <int kDim, bool kSplit>
struct Attend {
  static constexpr int kStages = kSplit ? 3 : 2;
  static constexpr int kRowBytes = kDim * 2 + 16;  // an odd number of 16-byte units: no conflicts
  static constexpr int kStageBytes = 2 * kTileKeys * kRowBytes;  // keys, then values
  static constexpr int kWarpKeys = kSplit ? kTileKeys / kTileWarps : kTileKeys;
  static constexpr int kScoreTiles = kWarpKeys / 8, kDimTiles = kDim / 8;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // After the last stage: the warps' sums, then the block's (float): [16][kDim] and two of [16].
  static constexpr int kPartial = kWarpQueries * kDim + 2 * kWarpQueries;
  static_assert(kDim % 16 == 0 && (kTileWarps + 1) * kPartial * 4 <= kSharedBytes || !kSplit);

  const AttentionArgs& args;
  const QueryTile& tile;
  KeySpan visible;  // keys outside are neither read nor seen
  uint8_t* shared;
  int started = 0;    // stages that prefetch() filled
  int32_t block = 0;  // of this lane's position of the next stage
  uint32_t q[kDim / 16][4];
  float acc[kDimTiles][4];
  float highest[2], sum[2];  // of rows lane / 4 and lane / 4 + 8, in units of log2

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int first_query() { return kSplit ? 0 : warp() * kWarpQueries; }
  __device__ static int first_key() { return kSplit ? warp() * kWarpKeys : 0; }

  __device__ Attend(const AttentionArgs& a, const QueryTile& t, KeySpan v, uint8_t* memory)
      : args(a), tile(t), visible(v), shared(memory) {
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

  __device__ void load_queries() {
    const int row = first_query() + lane() / 4, col = lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      q[k][0] = query_pair(row, k * 16 + col);
      q[k][1] = query_pair(row + 8, k * 16 + col);
      q[k][2] = query_pair(row, k * 16 + col + 8);
      q[k][3] = query_pair(row + 8, k * 16 + col + 8);
    }
  }

  // The position whose place this lane looks up, of the 64 from `chunk` on.
  __device__ static int32_t place(int32_t chunk) {
    constexpr int kKeys = kTileKeys / kTileWarps;
    return chunk + warp() * kKeys + lane() % kKeys;
  }
  __device__ bool is_visible(int32_t position) const {
    return position >= visible.begin && position < visible.end;
  }
  // Reads the block of the next stage's position, one stage ahead of its use.
  __device__ void look_up(int32_t chunk) {
    const int32_t position = place(chunk);
    if (is_visible(position)) block = __ldcg(tile.blocks + position / args.block_size);
  }

  // Starts the copy of the keys and values of positions [chunk, chunk + 64), 16 of them by each
  // warp. A lane looks up the place of one position for all that copy it.
  __device__ void fetch(int32_t chunk, int stage) {
    constexpr int kUnits = kDim / 8;  // 16-byte pieces of a row
    constexpr int kKeys = kTileKeys / kTileWarps;
    const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                      stage * kStageBytes + warp() * kKeys * kRowBytes;
    const auto* cache = static_cast<const __nv_bfloat16*>(args.cache);
    int32_t own = -1;
    if (const int32_t position = place(chunk); is_visible(position)) {
      own =
          (block * 2 * args.kv_heads + tile.kv_head) * args.block_size + position % args.block_size;
    }
    look_up(chunk + kTileKeys);
#pragma unroll
    for (int e = lane(); e < kKeys * kUnits; e += 32) {
      const int key = e / kUnits, unit = e % kUnits;
      const int32_t row = __shfl_sync(~0u, own, key);
      const auto* from = cache + int64_t{max(row, 0)} * kDim + unit * 8;
      const uint32_t to = base + key * kRowBytes + unit * 16;
      copy_async(to, from, row >= 0);
      copy_async(to + kTileKeys * kRowBytes, from + int64_t{args.kv_heads} * args.block_size * kDim,
                 row >= 0);
    }
  }

  __device__ void score(uint32_t keys, float (&s)[kScoreTiles][4]) {
    const int row = lane() % 8 + lane() / 16 * 8, col = lane() / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = s[n + 1][i] = 0;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        uint32_t b[4];  // keys n*8 + 0-7: columns 0-7, 8-15; keys n*8 + 8-15: the same
        load_matrices<false>(b, keys + (n * 8 + row) * kRowBytes + (k * 16 + col) * 2);
        mma(s[n], q[k], b[0], b[1]);
        mma(s[n + 1], q[k], b[2], b[3]);
      }
    }
  }

  // Scores to weights: masks, and moves the sums and accumulators to the new maximum.
  __device__ void soften(int32_t first, float (&s)[kScoreTiles][4]) {
    const float scale = args.scale * 1.4426950408889634f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t position = tile.position_of(first_query() + lane() / 4 + half * 8);
      const int32_t least =
          args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
      float top = highest[half];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t key = first + n * 8 + lane() % 4 * 2 + i;
          float& x = s[n][half * 2 + i];
          x = key >= least && key <= position && key < visible.end ? x * scale : -INFINITY;
          top = fmaxf(top, x);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float safe = top == -INFINITY ? 0.0f : top;
      const float shrink = exp2f(highest[half] - safe);
      highest[half] = top;
      float mine = 0;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& x = s[n][half * 2 + i];
          x = exp2f(x - safe);
          mine += x;
        }
      }
      sum[half] = sum[half] * shrink + mine;  // this lane's columns; lanes are added at the end
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        acc[d][half * 2] *= shrink;
        acc[d][half * 2 + 1] *= shrink;
      }
    }
  }

  __device__ void add_values(uint32_t values, const float (&s)[kScoreTiles][4]) {
    const int row = lane() % 16, col = lane() / 16 * 8;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      const uint32_t a[4] = {pack_halves(s[n][0], s[n][1]), pack_halves(s[n][2], s[n][3]),
                             pack_halves(s[n + 1][0], s[n + 1][1]),
                             pack_halves(s[n + 1][2], s[n + 1][3])};
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        uint32_t b[4];  // columns d*8 + 0-7: keys 0-7, 8-15; columns d*8 + 8-15: the same
        load_matrices<true>(b, values + (n * 8 + row) * kRowBytes + (d * 8 + col) * 2);
        mma(acc[d], a, b[0], b[1]);
        mma(acc[d + 1], a, b[2], b[3]);
      }
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

  __device__ void run() {
    const KeySpan span = visible;
    const int32_t chunks = this->chunks();
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s >= started && s < chunks) fetch(span.begin + s * kTileKeys, s);
      commit_copies();
    }
    load_queries();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = -INFINITY;
      sum[half] = 0;
    }
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[d][i] = 0;
    }
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
      float s[kScoreTiles][4];
      score(keys, s);
      soften(span.begin + c * kTileKeys + first_key(), s);
      add_values(keys + kTileKeys * kRowBytes, s);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
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

  // The four warps' partials become partial kTileWarps.
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
    float* all = partial(kTileWarps);
    combine<kTileWarps>(
        kTileWarps, static_cast<int>(threadIdx.x), kTileThreads,
        [this](int i) { return partial(i); },
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
    const auto get = [&](int i) { return cluster.map_shared_rank(partial(kTileWarps), i); };
    const int first = static_cast<int>(cluster.block_rank() * kTileThreads + threadIdx.x);
    if (splits > 1) cluster.sync();
    if (splits <= 4) {
      combine<4>(splits, first, splits * kTileThreads, get, write);
    } else {
      combine<16>(splits, first, splits * kTileThreads, get, write);
    }
    if (splits > 1) cluster.sync();  // no block leaves while another reads its sums
  }
};

}  // namespace refrain::kernels
