#pragma once
// How many blocks of a paged state group a request needs: coordinator and workers count alike.
// Pure.

#include <algorithm>
#include <cstdint>

namespace refrain::ipc {

inline int64_t blocks_for(int64_t tokens, int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// The first block that still has a token which the token at `position` sees, or one after it.
inline int64_t first_block_seen(int64_t window, int64_t position, int64_t block_size) {
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / block_size;
}

// The most that a request of `tokens` tokens holds at once. Blocks that the window has passed are
// given back when the step that passed them is answered; another one may be under way meanwhile.
inline int64_t most_blocks(int64_t window, int64_t tokens, int64_t tokens_a_step,
                           int64_t block_size) {
  const int64_t all = blocks_for(tokens, block_size);
  if (window == 0) return all;
  return std::min(all, blocks_for(window - 1 + 2 * tokens_a_step, block_size) + 1);
}

}  // namespace refrain::ipc
