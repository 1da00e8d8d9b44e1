#pragma once
// The order in which the blocks of attention_flashinfer take tiles of queries. A unit is one tile
// of one query head; rows follow each other, in a row the tiles that see most keys come first, with
// all heads of a tile together. Plain functions: the host's tests call them too.

#include <cstdint>

namespace refrain::kernels {

// The unit that block `block` of `blocks` takes in its turn `turn`: forwards and backwards in
// turns, so that with units of falling cost the blocks' sums are alike. Grows with the turn; each
// unit belongs to one block and turn.
constexpr int32_t unit_of_turn(int32_t turn, uint32_t block, uint32_t blocks) {
  const uint32_t place = turn % 2 == 0 ? block : blocks - 1 - block;
  return static_cast<int32_t>(static_cast<uint32_t>(turn) * blocks + place);
}

// Tiles of `queries` tokens that a row of `tokens` has; a row of at most `short_tokens` has none.
constexpr int32_t tiles_of_row(int32_t tokens, int32_t short_tokens, int32_t queries) {
  return tokens <= short_tokens ? 0 : (tokens + queries - 1) / queries;
}

}  // namespace refrain::kernels
