#pragma once
// Causal attention over the paged cache by online softmax. Keys are taken in chunks of 64 from
// position 0, whatever the block size and the query, so a token's result depends only on its query
// and its context: not on the batch, on how the prompt was chunked, or on decode versus prefill.
// A unit of work is a tile of a row's tokens times the query heads of one KV head. Decode is bound
// by memory (the cache), prefill by arithmetic with one chunk of K and V as float in L1.

#include "kernels/host/ops/rows.h"
#include "kernels/host/simd/math.h"

namespace refrain::kernels {

// A thread's scratch: queries and accumulators of a tile, one chunk of keys and values.
struct AttentionScratch {
  float* q;        // [kTileQueries, dim] scaled queries
  float* acc;      // [kTileQueries, dim]
  float* scores;   // [kTileQueries, kChunk], then probabilities
  float* highest;  // [kTileQueries]
  float* total;    // [kTileQueries]
  float* keys;     // [kChunk / 16, dim, 16] transposed
  float* values;   // [kChunk, dim]
  int64_t dim;     // head_dim rounded up to 16
  PrefetchRuns ahead;
};

template <class S>
AttentionScratch make_scratch(const AttentionArgs& args, const Team& team) {
  AttentionScratch s{};
  s.dim = (args.head_dim + 15) / 16 * 16;
  auto* next = reinterpret_cast<float*>(team.scratch);
  const auto take = [&next](int64_t count) {
    float* at = next;
    next += count;
    return at;
  };
  s.q = take(kTileQueries * s.dim);
  s.acc = take(kTileQueries * s.dim);
  s.scores = take(kTileQueries * kChunk);
  s.keys = take(kChunk * s.dim);
  s.values = take(kChunk * s.dim);
  s.highest = take(kTileQueries);
  s.total = take(kTileQueries);
  return s;
}

template <class S>
KeyRange visible_keys(const AttentionArgs& args, const AttentionTile& tile, int64_t position,
                      int64_t chunk) {
  const int64_t first = args.sliding_window > 0 ? position - args.sliding_window + 1 : 0;
  const int64_t end = std::min(position + 1, tile.key_end);
  return {static_cast<int>(std::clamp<int64_t>(first - chunk, 0, kChunk)),
          static_cast<int>(std::clamp<int64_t>(end - chunk, 0, kChunk))};
}

// Columns [first, dim) of sixteen rows, fewer than sixteen columns: padded with 0, then transposed.
template <class S, class T>
void transpose_tail(const T* const (&rows)[16], int64_t first, int64_t dim, float* out) {
  T padded[16][16] = {};
  const T* from[16];
  for (int i = 0; i < 16; ++i) {
    std::copy(rows[i] + first, rows[i] + dim, padded[i]);
    from[i] = padded[i];
  }
  S::transpose(from, 0, out);
}

// A tile's keys: of chunk [chunk, chunk + 64), those that any of its queries sees.
template <class S>
KeyRange tile_keys(const AttentionArgs& args, const AttentionTile& tile, int64_t chunk) {
  const KeyRange first = visible_keys<S>(args, tile, tile.position, chunk);
  const KeyRange last = visible_keys<S>(args, tile, tile.position + tile.tokens - 1, chunk);
  return {first.begin, last.end};
}

// The first chunk that the tile sees anything of.
template <class S>
int64_t first_chunk(const AttentionArgs& args, const AttentionTile& tile) {
  if (args.sliding_window == 0) return tile.key_begin;
  const int64_t seen = std::max<int64_t>(0, tile.position - args.sliding_window + 1);
  return std::max(tile.key_begin, seen / kChunk * kChunk);
}

// Where the keys of `position` lie; its values are a K or V half of the block further.
template <class S, class T>
const T* key_row(const AttentionArgs& args, const AttentionTile& tile, int64_t position) {
  const int64_t block = tile.blocks[position / args.block_size];
  const int64_t row = (block * 2 * args.kv_heads + tile.kv_head) * args.block_size;
  return static_cast<const T*>(args.cache) + (row + position % args.block_size) * args.head_dim;
}

// Plans to ask for the keys and values of a chunk over the about 256 steps that another one takes.
template <class S, class T>
void plan_ahead(const AttentionArgs& args, const AttentionTile& tile, int64_t chunk,
                PrefetchRuns& ahead) {
  const KeyRange range = tile_keys<S>(args, tile, chunk);
  const int64_t row_bytes = args.head_dim * static_cast<int64_t>(sizeof(T));
  const int64_t to_values = args.kv_heads * args.block_size * row_bytes;
  for (int key = range.begin; key < range.end;) {
    const int64_t in_block = args.block_size - (chunk + key) % args.block_size;
    const auto count = static_cast<int>(std::min<int64_t>(in_block, range.end - key));
    const auto* at = reinterpret_cast<const char*>(key_row<S, T>(args, tile, chunk + key));
    ahead.add(at, count * row_bytes);
    ahead.add(at + to_values, count * row_bytes);
    key += count;
  }
  ahead.rate = static_cast<int>((2 * kChunk * row_bytes / 64 + 255) / 256);
}

// Keys transposed and values widened for the chunk's keys in `range`; lanes of other keys repeat a
// key of the range, and are never looked at.
template <class S, class T>
void load_chunk(const AttentionArgs& args, const AttentionTile& tile, int64_t chunk, KeyRange range,
                AttentionScratch& s) {
  const int64_t dim = args.head_dim, whole = dim / 16 * 16;
  for (int group = range.begin / 16; group * 16 < range.end; ++group) {
    const T* rows[16];
    for (int i = 0; i < 16; ++i) {
      const int key = std::clamp(group * 16 + i, range.begin, range.end - 1);
      rows[i] = key_row<S, T>(args, tile, chunk + key);
    }
    for (int64_t d = 0; d < whole; d += 16) {
      s.ahead.ask(4);
      S::transpose(rows, d, s.keys + (group * s.dim + d) * 16);
    }
    if (whole < dim) {
      transpose_tail<S, T>(rows, whole, dim, s.keys + (group * s.dim + whole) * 16);
    }
    for (int i = 0; i < 16; ++i) {
      s.ahead.ask();
      const T* value = rows[i] + args.kv_heads * args.block_size * dim;
      float* to = s.values + (group * 16 + i) * s.dim;
      for (int64_t d = 0; d < whole; d += 16) S::store(to + d, S::load(value + d));
      if (whole < dim) {
        S::store(to + whole, S::load_n(value + whole, static_cast<int>(dim - whole)));
      }
    }
  }
}

// scores[query … query + kQueries) of the kGroups × 16 keys from group `first` on.
template <class S, int kQueries, int kGroups>
void score_groups(AttentionScratch& s, int query, int first) {
  typename S::Reg acc[kQueries][kGroups];
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) acc[i][g] = S::zero();
  }
  const float* keys = s.keys + first * s.dim * 16;
  const float* q = s.q + query * s.dim;
  for (int64_t d = 0; d < s.dim; ++d) {
    s.ahead.ask();
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      const auto k = S::load(keys + (g * s.dim + d) * 16);
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        acc[i][g] = S::fma(S::broadcast(q[i * s.dim + d]), k, acc[i][g]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      S::store(s.scores + (query + i) * kChunk + (first + g) * 16, acc[i][g]);
    }
  }
}

template <class S, int kQueries>
void score_queries(AttentionScratch& s, int query, int first, int last) {
  for (; first + 4 <= last; first += 4) score_groups<S, kQueries, 4>(s, query, first);
  for (; first < last; ++first) score_groups<S, kQueries, 1>(s, query, first);
}

// One softmax step of a query: scores become probabilities, its sums are rescaled.
template <class S>
void softmax_step(AttentionScratch& s, int query, KeyRange keys) {
  using Reg = typename S::Reg;
  float* scores = s.scores + query * kChunk;
  const Reg lowest = S::broadcast(-std::numeric_limits<float>::infinity());
  const int first = keys.begin / 16, last = (keys.end + 15) / 16;
  Reg top = lowest;
  for (int g = first; g < last; ++g) {
    top = S::max(top, S::select_range(keys.begin - g * 16, keys.end - g * 16,
                                      S::load(scores + g * 16), lowest));
  }
  const float before = s.highest[query];
  const float highest = std::max(before, S::max_lane(top));
  Reg sum = S::zero();
  for (int g = first; g < last; ++g) {
    const Reg p = exp<S>(S::sub(S::load(scores + g * 16), S::broadcast(highest)));
    const Reg kept = S::select_range(keys.begin - g * 16, keys.end - g * 16, p, S::zero());
    S::store(scores + g * 16, kept);
    sum = S::add(sum, kept);
  }
  if (highest != before) {  // scaling by 1 otherwise
    alignas(64) float scale[16];
    S::store(scale, exp<S>(S::broadcast(before - highest)));
    float* acc = s.acc + query * s.dim;
    for (int64_t d = 0; d < s.dim; d += 16) {
      S::store(acc + d, S::mul(S::load(acc + d), S::broadcast(scale[0])));
    }
    s.total[query] *= scale[0];
    s.highest[query] = highest;
  }
  s.total[query] += S::sum(sum);
}

// acc += probabilities · values over keys [first, last), for kVectors × 16 columns from `d`.
template <class S, int kQueries, int kVectors>
void add_values(AttentionScratch& s, int query, int64_t d, int first, int last) {
  typename S::Reg acc[kQueries][kVectors];
  float* at = s.acc + query * s.dim + d;
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[i][v] = S::load(at + i * s.dim + v * 16);
  }
  const float* p = s.scores + query * kChunk;
  for (int key = first; key < last; ++key) {
    s.ahead.ask();
    const float* value = s.values + key * s.dim + d;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const auto column = S::load(value + v * 16);
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        acc[i][v] = S::fma(S::broadcast(p[i * kChunk + key]), column, acc[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) S::store(at + i * s.dim + v * 16, acc[i][v]);
  }
}

template <class S, int kQueries>
void add_values_all(AttentionScratch& s, int query, int first, int last) {
  int64_t d = 0;
  for (; d + 64 <= s.dim; d += 64) add_values<S, kQueries, 4>(s, query, d, first, last);
  for (; d < s.dim; d += 16) add_values<S, kQueries, 1>(s, query, d, first, last);
}

// kQueries neighbours over the keys they all see, before and after that each its own: every query
// meets its keys in ascending order and no others, so a later token's values cannot reach it.
template <class S, int kQueries>
void attend_queries(const AttentionArgs& args, const AttentionTile& tile, int64_t chunk, int query,
                    AttentionScratch& s) {
  KeyRange keys[kQueries];
  KeyRange shared{0, kChunk}, any{kChunk, 0};
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
    keys[i] = visible_keys<S>(args, tile, tile.position_of(query + i), chunk);
    shared = {std::max(shared.begin, keys[i].begin), std::min(shared.end, keys[i].end)};
    if (keys[i].begin < keys[i].end) {
      any = {std::min(any.begin, keys[i].begin), std::max(any.end, keys[i].end)};
    }
  }
  if (any.begin >= any.end) return;
  score_queries<S, kQueries>(s, query, any.begin / 16, (any.end + 15) / 16);
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
    if (keys[i].begin < keys[i].end) softmax_step<S>(s, query + i, keys[i]);
  }
  const bool overlap = shared.begin < shared.end;
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
    const int end = overlap ? shared.begin : keys[i].end;
    if (keys[i].begin < end) add_values_all<S, 1>(s, query + i, keys[i].begin, end);
  }
  if (!overlap) return;
  add_values_all<S, kQueries>(s, query, shared.begin, shared.end);
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
    if (shared.end < keys[i].end) add_values_all<S, 1>(s, query + i, shared.end, keys[i].end);
  }
}

// Sums of a part of the keys: [head_dim] of values, the greatest score, the total weight.
template <class S>
float* part_of(const AttentionArgs& args, const AttentionTile& tile, int query) {
  const int64_t token = tile.token + query / tile.heads;
  const int64_t first = args.planned.plan[kPlanHeader + token];
  const int64_t head = tile.kv_head * tile.heads + query % tile.heads;
  return args.planned.parts +
         ((first + tile.part) * args.q_heads + head) * (int64_t{args.head_dim} + 2);
}

template <class S>
void store_parts(const AttentionArgs& args, const AttentionTile& tile, const AttentionScratch& s) {
  for (int q = 0; q < tile.queries(); ++q) {
    float* part = part_of<S>(args, tile, q);
    std::copy_n(s.acc + q * s.dim, args.head_dim, part);
    part[args.head_dim] = s.highest[q];
    part[args.head_dim + 1] = s.total[q];
  }
}

// `next`: the tile after this one, or null.
template <class S, class T>
void attend_tile(const AttentionArgs& args, const AttentionTile& tile, const AttentionTile* next,
                 AttentionScratch& s) {
  const int64_t head = tile.kv_head * tile.heads;
  for (int q = 0; q < tile.queries(); ++q) {
    const int64_t col = (head + q % tile.heads) * args.head_dim;
    for (int64_t d = 0; d < s.dim; d += 16) {
      const auto x = load16<S>(args.q, tile.token + q / tile.heads, col + d, args.head_dim - d);
      S::store(s.q + q * s.dim + d, S::mul(x, S::broadcast(args.scale)));
      S::store(s.acc + q * s.dim + d, S::zero());
    }
    s.highest[q] = -std::numeric_limits<float>::infinity();
    s.total[q] = 0;
  }
  const int64_t end = std::min(tile.position + tile.tokens, tile.key_end);
  for (int64_t chunk = first_chunk<S>(args, tile); chunk < end; chunk += kChunk) {
    s.ahead.clear();
    if (chunk + kChunk < end) {
      plan_ahead<S, T>(args, tile, chunk + kChunk, s.ahead);
    } else if (next != nullptr) {
      plan_ahead<S, T>(args, *next, first_chunk<S>(args, *next), s.ahead);
    }
    load_chunk<S, T>(args, tile, chunk, tile_keys<S>(args, tile, chunk), s);
    int q = 0;
    for (; q + 4 <= tile.queries(); q += 4) attend_queries<S, 4>(args, tile, chunk, q, s);
    const int rest = tile.queries() - q;
    if (rest == 3) attend_queries<S, 3>(args, tile, chunk, q, s);
    if (rest == 2) attend_queries<S, 2>(args, tile, chunk, q, s);
    if (rest == 1) attend_queries<S, 1>(args, tile, chunk, q, s);
  }
  if (tile.part >= 0) return store_parts<S>(args, tile, s);
  for (int q = 0; q < tile.queries(); ++q) {
    const int64_t col = (head + q % tile.heads) * args.head_dim;
    const auto total = S::broadcast(s.total[q]);
    for (int64_t d = 0; d < args.head_dim; d += 16) {
      store16<S>(args.out, tile.token + q / tile.heads, col + d, args.head_dim - d,
                 S::div(S::load(s.acc + q * s.dim + d), total));
    }
  }
}

template <class S>
void zero_padded_tokens(const AttentionArgs& args, const Team& team) {
  const int64_t live = live_rows(args.tokens);
  const Range range = share_of(args.tokens.padded - live, team);
  const int64_t cols = int64_t{args.q_heads} * args.head_dim;
  for (int64_t t = live + range.begin; t < live + range.end; ++t) {
    for (int64_t c = 0; c < cols; c += 16) store16<S>(args.out, t, c, cols - c, S::zero());
  }
}

// The thread's tiles of a `Walk` over all of them.
template <class S, class Walk>
void attend_tiles(const AttentionArgs& args, const Team& team) {
  zero_padded_tokens<S>(args, team);
  AttentionScratch scratch = make_scratch<S>(args, team);
  Walk walk(args, team);
  AttentionTile tile, next;
  for (bool more = walk.next(tile); more; tile = next) {
    more = walk.next(next);
    const AttentionTile* following = more ? &next : nullptr;
    args.cache_dtype == DType::kBFloat16 ? attend_tile<S, BFloat16>(args, tile, following, scratch)
                                         : attend_tile<S, float>(args, tile, following, scratch);
  }
}

template <class S>
void attention(const AttentionArgs& args, const Team& team) {
  attend_tiles<S, TileWalk>(args, team);
}

}  // namespace refrain::kernels
