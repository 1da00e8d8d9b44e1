#pragma once
// How attention_stream.cu divides a decode batch: all its keys are one list of tiles, row by row,
// in a row KV head by KV head. Each block has a share of the list, each of its warps a share of
// that. share_keys.cu makes it once a step, for the attention of all layers.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/shares.cuh"

namespace refrain::kernels {

inline constexpr int kStreamWarps = 8, kStreamThreads = kStreamWarps * 32;
inline constexpr int kStreamKeys = 16;     // a tile
inline constexpr int kStreamQueries = 16;  // of a row and KV head at most

// What a row of the batch has to do with the kernel; begin = end: nothing.
struct RowPlan {
  int32_t start;          // tiles of a KV head in the rows before
  int32_t token, tokens;  // of the batch
  int32_t begin, end;     // visible positions behind a shared prefix, and what the first tile has
                          // before them
  int32_t slot;
};

struct alignas(16) Plan {
  int32_t bounds[kMaxStreamBlocks + 4];  // tiles that begin a block's share; one more, and padding
  RowPlan row[kMaxStreamReqs + 1];       // of the last one `start` alone

  // Of the plan of so many rows.
  static constexpr int32_t words(int32_t rows) {
    return static_cast<int32_t>(
        (sizeof(bounds) + static_cast<size_t>(rows + 1) * sizeof(RowPlan) + 15) / 16);
  }
  __device__ uint4* data() { return reinterpret_cast<uint4*>(this); }
  __device__ int32_t tiles(int32_t r) const { return row[r + 1].start - row[r].start; }
};
inline constexpr int32_t kMaxPlanWords = Plan::words(kMaxStreamReqs);

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
    return int64_t{plan.row[row].start} * kv_heads + int64_t{head} * tiles + tile;
  }
};

// A warp's share.
struct alignas(16) WarpShare {
  int32_t cache_row[32];  // of its first tiles: where their keys begin
  Cursor first;
  int32_t begin, count;  // tiles
  int32_t stable;        // of the first 32: the first so many hold keys of earlier steps alone
};

// In AttentionArgs::shares.
struct KeyShares {
  Plan plan;
  WarpShare warp[kMaxStreamBlocks * kStreamWarps];
};

__device__ inline Cursor find(const Plan& plan, int32_t rows, int32_t kv_heads, int64_t tile) {
  int32_t low = 0, high = rows - 1;  // the last row that starts at or before the tile
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (int64_t{plan.row[middle].start} * kv_heads <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int32_t tiles = plan.tiles(low);
  const auto in_row = static_cast<int32_t>(tile - int64_t{plan.row[low].start} * kv_heads);
  return {low, in_row / tiles, in_row % tiles, tiles};
}

__device__ inline int32_t first_key(const Plan& plan, const Cursor& c) {
  return plan.row[c.row].begin + c.tile * kStreamKeys;
}

// The row of the cache, of head_dim elements, where a tile's keys begin.
template <class Args>
__device__ int32_t cache_row(const Args& args, const Plan& plan, const Cursor& c) {
  const int32_t position = first_key(plan, c);
  const int32_t block = __ldcg(args.block_table + int64_t{plan.row[c.row].slot} * args.max_blocks +
                               position / args.block_size);
  return (block * 2 * args.kv_heads + c.head) * args.block_size + position % args.block_size;
}

}  // namespace refrain::kernels
