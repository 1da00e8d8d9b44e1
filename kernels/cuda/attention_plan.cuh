#pragma once
// The plan of attention_stream.cu: all keys of a decode batch as one list of tiles, row by row, in
// a row KV head by KV head, and the shares of it. Every block makes the same plan from the lengths.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/shares.cuh"

namespace refrain::kernels {

inline constexpr int kStreamWarps = 8, kStreamThreads = kStreamWarps * 32;
inline constexpr int kStreamKeys = 16;  // a tile
// A block's share ends with a request and head that ends so few tiles before or after its even
// share: to put parts of two blocks together takes a warp as long as some three tiles each.
inline constexpr int64_t kNearTiles = 16;

// What a row of the batch has to do with this kernel; tiles 0: nothing.
struct RowPlan {
  int32_t token, tokens;  // of the batch
  int32_t begin, end;     // visible positions, and those before them in the first one's tile
  int32_t slot;
};

struct Plan {
  RowPlan row[kMaxStreamReqs];
  int32_t start[kMaxStreamReqs + 1];  // tiles of a KV head in the rows before
  int32_t warp_sums[kStreamWarps];
  int32_t bounds[kMaxStreamBlocks + 1];  // tiles that begin a block's share

  __device__ int32_t tiles(int32_t r) const { return start[r + 1] - start[r]; }
};

__device__ inline RowPlan plan_row(const AttentionArgs& args, int32_t r, int32_t group) {
  const int32_t token = __ldcg(args.inputs.query_start + r);
  const int32_t tokens = __ldcg(args.inputs.query_start + r + 1) - token;
  const int32_t length = __ldcg(args.inputs.seq_lens + r);
  const int32_t slot = __ldcg(args.inputs.row_slot + r);
  const int32_t live = args.reqs.live == nullptr ? args.reqs.padded : __ldcg(args.reqs.live);
  if (r >= live || tokens * group > kWarpQueries) return {};
  const int32_t begin =
      args.sliding_window > 0 ? max(0, length - tokens - args.sliding_window + 1) : 0;
  const int32_t first = begin / kStreamKeys * kStreamKeys;
  return {token, tokens, first, tokens > 0 ? length : first, slot};
}

// By the whole block.
__device__ inline void list_tiles(const AttentionArgs& args, Plan& plan) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t group = args.q_heads / args.kv_heads;
  int32_t before = 0;
  for (int32_t base = 0; base < args.reqs.padded; base += kStreamThreads) {
    const int32_t r = base + thread;
    int32_t tiles = 0;
    if (r < args.reqs.padded) {
      plan.row[r] = plan_row(args, r, group);
      tiles = (plan.row[r].end - plan.row[r].begin + kStreamKeys - 1) / kStreamKeys;
    }
    int32_t sum = tiles;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == 31) plan.warp_sums[warp] = sum;
    __syncthreads();
    int32_t total = 0;
#pragma unroll
    for (int w = 0; w < kStreamWarps; ++w) {
      if (w < warp) sum += plan.warp_sums[w];
      total += plan.warp_sums[w];
    }
    if (r < args.reqs.padded) plan.start[r + 1] = before + sum;
    before += total;
    __syncthreads();
  }
  if (thread == 0) plan.start[0] = 0;
  __syncthreads();
}

// A place in the list of tiles: tile `tile` of a row's KV head.
struct Cursor {
  int32_t row, head, tile, tiles;

  __device__ void next(const Plan& plan, int32_t kv_heads) {
    if (++tile < tiles) return;
    tile = 0;
    if (++head < kv_heads) return;
    head = 0;
    do tiles = plan.tiles(++row);
    while (tiles == 0);
  }
  __device__ int64_t index(const Plan& plan, int32_t kv_heads) const {
    return int64_t{plan.start[row]} * kv_heads + int64_t{head} * tiles + tile;
  }
};

__device__ inline Cursor find(const Plan& plan, int32_t rows, int32_t kv_heads, int64_t tile) {
  int32_t low = 0, high = rows - 1;  // the last row that starts at or before the tile
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (int64_t{plan.start[middle]} * kv_heads <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int32_t tiles = plan.tiles(low);
  const auto in_row = static_cast<int32_t>(tile - int64_t{plan.start[low]} * kv_heads);
  return {low, in_row / tiles, in_row % tiles, tiles};
}

// By the whole block.
__device__ inline void make_plan(const AttentionArgs& args, Plan& plan) {
  list_tiles(args, plan);
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const int64_t total = int64_t{plan.start[args.reqs.padded]} * args.kv_heads;
  const Shares even(total, blocks);
  for (auto b = static_cast<int32_t>(threadIdx.x); b <= blocks; b += kStreamThreads) {
    int64_t bound = even.first(b);
    if (bound < total) {
      const Cursor c = find(plan, args.reqs.padded, args.kv_heads, bound);
      bound = at_unit(bound, c.tile, c.tiles, kNearTiles);
    }
    plan.bounds[b] = static_cast<int32_t>(bound);
  }
  __syncthreads();
}

}  // namespace refrain::kernels
