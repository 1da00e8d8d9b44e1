#pragma once
// Sizes of attention's tiles, and the scratch they need of a thread.

#include <cstdint>

namespace refrain::kernels {

inline constexpr int kChunk = 64;        // keys a softmax step
inline constexpr int kTileQueries = 64;  // queries (tokens × heads of a group) a tile, at most
inline constexpr int kTileTokens = 16;   // tokens a tile, at most

// Queries, accumulators, scores, two sums; keys and values of a chunk.
constexpr int64_t attention_scratch_floats(int64_t dim) {
  return (2 * dim + kChunk + 2) * kTileQueries + 2 * kChunk * dim;
}

}  // namespace refrain::kernels
