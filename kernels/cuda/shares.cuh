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

// A piece that begins a block's share, and whether the block before has part of the piece's unit.
struct Bound {
  int32_t piece;
  bool within;

  constexpr int32_t packed() const { return piece * 2 + (within ? 1 : 0); }
  static constexpr Bound unpacked(int32_t bound) { return {bound / 2, bound % 2 != 0}; }
};

// Where a block's share begins that would begin at `at`, piece `piece` of a unit of `pieces`: at
// the unit's nearer end if that is at most `near` pieces away.
constexpr Bound near_unit(int64_t at, int64_t piece, int64_t pieces, int64_t near) {
  const bool down = piece <= pieces - piece;
  const int64_t way = down ? piece : pieces - piece;
  if (way > near) return {static_cast<int32_t>(at), true};
  return {static_cast<int32_t>(down ? at - way : at + way), false};
}

// Divisions that are weighed against each other: a share may end with a unit that ends so many
// sixteenths of an even share before or after its even end.
inline constexpr int kDivisions = 8;
constexpr int64_t nearness(int division, int64_t total, int64_t blocks) {
  constexpr int kSixteenths[kDivisions] = {0, 1, 2, 3, 4, 6, 9, 14};
  return total * kSixteenths[division] / (16 * blocks);
}

// What a share takes, in pieces: its own, and `meeting` to add parts of units that other blocks
// have part of, too.
constexpr int64_t share_cost(Bound begin, Bound end, int64_t meeting) {
  return end.piece - begin.piece + (begin.within || end.within ? meeting : 0);
}
// Of a meeting: it takes a block as long as to read the keys and values of so many elements of a
// head, that is of 16 tiles of 128.
inline constexpr int64_t kMeetingElements = 16 * 128;

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
