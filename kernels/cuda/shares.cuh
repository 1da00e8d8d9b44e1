#pragma once
// Pieces of work cut into equal runs, one for each worker of a launch. Plain functions: the host's
// tests call them too.

#include <cstdint>

namespace refrain::kernels {

// Equal shares of `total` pieces: worker w has [first(w), first(w + 1)). Of fewer pieces than
// workers each of the first `total` workers has one and the others have none, so that all workers
// from the owner of a piece to the owner of a later one have pieces.
class Shares {
 public:
  constexpr Shares(int64_t total, int64_t workers)
      : total_(total), workers_(total < workers ? total : workers) {}

  constexpr int64_t first(int64_t worker) const {
    return worker < workers_ ? total_ * worker / workers_ : total_;
  }
  // Of a piece in [0, total).
  constexpr int32_t owner(int64_t piece) const {
    return static_cast<int32_t>(((piece + 1) * workers_ - 1) / total_);
  }

 private:
  int64_t total_;
  int64_t workers_;  // that have pieces
};

// Where a block's share begins that would begin before piece `piece` of a unit of `pieces`: at the
// unit's nearer end if that is at most `near` pieces away.
constexpr int64_t at_unit(int64_t bound, int64_t piece, int64_t pieces, int64_t near) {
  if (piece <= pieces - piece) return piece <= near ? bound - piece : bound;
  return pieces - piece <= near ? bound + pieces - piece : bound;
}

// Pieces divided over blocks and in a block equally over its workers. Worker w of block b is number
// b * workers + w.
struct BlockShares {
  const int32_t* bounds;  // [blocks + 1] the piece that a block begins with
  int32_t workers;        // of a block

  constexpr Shares of(int32_t block) const { return {bounds[block + 1] - bounds[block], workers}; }
  constexpr int64_t first(int32_t block, int32_t worker) const {
    return bounds[block] + of(block).first(worker);
  }
  // Of a piece that belongs to `block` or one near it.
  constexpr int32_t owner(int64_t piece, int32_t block) const {
    while (piece < bounds[block]) --block;
    while (piece >= bounds[block + 1]) ++block;
    return block * workers + of(block).owner(piece - bounds[block]);
  }
  // The block's last worker that has pieces, of a block that has some.
  constexpr int32_t last(int32_t block) const {
    const int32_t pieces = bounds[block + 1] - bounds[block];
    return block * workers + (pieces < workers ? pieces : workers) - 1;
  }
};

}  // namespace refrain::kernels
