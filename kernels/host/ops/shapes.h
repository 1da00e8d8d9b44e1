#pragma once
// Sizes and small values that the ops work with. They are plain code, so they stand apart from the
// templates: a table_*.cpp includes them before it switches to its instruction set.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/core/attention_units.h"
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
  // Of its keys those it is for; begin: a multiple of kChunk.
  int64_t key_begin = 0, key_end = std::numeric_limits<int64_t>::max();
  int32_t part = -1;  // of each token's parts, where its sums go; -1: the result is written

  int queries() const { return tokens * heads; }
  int64_t position_of(int query) const { return position + query / heads; }
};

// Hands out this thread's tiles: all tiles of all live rows, dealt to the team one by one.
class TileWalk {
 public:
  TileWalk(const AttentionArgs& args, const Team& team)
      : args_(args), team_(team), rows_(live_rows(args.reqs)) {
    const int heads = args.q_heads / args.kv_heads;
    const int fit = kTileQueries / heads;
    most_ = fit < 1 ? 1 : fit < kTileTokens ? fit : kTileTokens;
  }

  // False when there is none left.
  bool next(AttentionTile& tile) {
    for (; row_ < rows_; ++row_, token_ = -1) {
      const int64_t begin = args_.inputs.query_start[row_],
                    end = args_.inputs.query_start[row_ + 1];
      if (token_ < 0) token_ = begin;
      for (; token_ < end; token_ += most_, head_ = 0) {
        while (head_ < args_.kv_heads) {
          const int64_t head = head_++;
          if (unit_++ % team_.size != team_.rank) continue;
          const int64_t left = end - token_;
          const int64_t context = args_.inputs.seq_lens[row_] - (end - begin);
          tile = {token_,
                  static_cast<int>(left < most_ ? left : most_),
                  context + (token_ - begin),
                  head,
                  args_.q_heads / args_.kv_heads,
                  args_.block_table + int64_t{args_.inputs.row_slot[row_]} * args_.max_blocks,
                  0,
                  std::numeric_limits<int64_t>::max(),
                  -1};
          return true;
        }
      }
    }
    return false;
  }

 private:
  const AttentionArgs& args_;
  const Team& team_;
  int64_t rows_;
  int64_t most_ = 1;
  int64_t row_ = 0;
  int64_t token_ = -1;  // -1: the row's first
  int64_t head_ = 0;
  int64_t unit_ = 0;
};

// Hands out this thread's tiles: those of all units, dealt to the team one by one.
class PlannedTiles {
 public:
  PlannedTiles(const AttentionArgs& args, const Team& team)
      : args_(args),
        team_(team),
        units_(reinterpret_cast<const AttentionUnit*>(args.planned.plan +
                                                      args.planned.shape.units_at())),
        heads_(args.q_heads / args.kv_heads),
        most_(std::min(kTileTokens, kTileQueries / heads_)),
        index_(team.rank) {}

  bool next(AttentionTile& tile) {
    while (unit_ < args_.planned.plan[0]) {
      const AttentionUnit& unit = units_[unit_];
      const int64_t tiles = (unit.tokens + most_ - 1) / most_;
      if (index_ < tiles * args_.kv_heads) {
        tile = make(unit, static_cast<int32_t>(index_ / args_.kv_heads) * most_,
                    index_ % args_.kv_heads);
        index_ += team_.size;
        return true;
      }
      index_ -= tiles * args_.kv_heads;
      ++unit_;
    }
    return false;
  }

 private:
  AttentionTile make(const AttentionUnit& unit, int32_t first, int64_t kv_head) const {
    AttentionTile tile{};
    tile.token = unit.token + first;
    tile.tokens = std::min(most_, unit.tokens - first);
    tile.kv_head = kv_head;
    tile.heads = heads_;
    tile.blocks = args_.block_table + int64_t{args_.inputs.row_slot[unit.row]} * args_.max_blocks;
    tile.key_begin = unit.begin;
    tile.part = unit.part;
    if (unit.position < 0) {
      const int64_t left = args_.inputs.query_start[unit.row + 1] - tile.token;
      tile.position = args_.inputs.seq_lens[unit.row] - left;
      tile.key_end = tile.position + tile.tokens;
    } else {
      tile.position = unit.position + first;
      tile.key_end = unit.end;
    }
    return tile;
  }

  const AttentionArgs& args_;
  const Team& team_;
  const AttentionUnit* units_;
  int heads_;
  int32_t most_;
  int32_t unit_ = 0;
  int64_t index_;  // of the next tile of this thread, from the unit's first on
};

// Memory to ask for while computing on something else: asked for all at once, it would only fill
// the core's line buffers and stall it.
struct PrefetchRuns {
  struct Run {
    const char* at;
    const char* end;
  };
  Run runs[2 * kChunk];
  int count = 0;
  int next = 0;
  int rate = 0;  // lines a step

  void clear() { count = next = rate = 0; }
  void add(const char* at, int64_t bytes) { runs[count++] = {at, at + bytes}; }
  void ask(int steps = 1) {
    for (int lines = steps * rate; lines > 0 && next < count; --lines) {
      __builtin_prefetch(runs[next].at);
      runs[next].at += 64;
      if (runs[next].at >= runs[next].end) ++next;
    }
  }
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
