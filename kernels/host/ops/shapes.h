#pragma once
// Sizes and small values that the ops work with. They are plain code, so they stand apart from the
// templates: a table_*.cpp includes them before it switches to its instruction set.

#include <cstdint>

#include "kernels/host/launcher.h"

namespace refrain::kernels {

inline constexpr int kChunk = 64;        // keys a softmax step
inline constexpr int kTileQueries = 64;  // queries (tokens × heads of a group) a tile, at most
inline constexpr int kTileTokens = 16;   // tokens a tile, at most

// Queries, accumulators, scores, two sums; keys and values of a chunk.
constexpr int64_t attention_scratch_floats(int64_t dim) {
  return (2 * dim + kChunk + 2) * kTileQueries + 2 * kChunk * dim;
}

// Tokens [token, token + tokens) of one row, at positions position, position + 1, …, times the
// `heads` query heads of KV head `kv_head`. Query q is token q / heads, head q % heads.
struct AttentionTile {
  int64_t token;
  int tokens;
  int64_t position;
  int64_t kv_head;
  int heads;
  const int32_t* blocks;  // the request's block table

  int queries() const { return tokens * heads; }
  int64_t position_of(int query) const { return position + query / heads; }
};

// Keys of [chunk, chunk + 64) that a query at `position` sees, relative to the chunk.
struct KeyRange {
  int begin;
  int end;
};

// Blocks of at most `most` rows, as even as they go: block `index` of them.
struct RowBlocks {
  int64_t rows;
  int64_t most;

  int64_t count() const { return (rows + most - 1) / most; }
  int64_t begin(int64_t index) const { return rows * index / count(); }
};

// What one thread of the team computes: columns first, rows as well when tiles are few.
struct LinearShare {
  Range rows;
  Range tiles;
};

// What a block of linear asks for while it computes: `lines` cache lines a step, `stride` bytes
// apart.
struct Prefetch {
  const char* at = nullptr;
  int64_t stride = 0;
  int64_t advance = 0;  // bytes from one step to the next
  int lines = 0;
};

}  // namespace refrain::kernels
