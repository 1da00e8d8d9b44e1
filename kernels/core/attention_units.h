#pragma once
// The plan of planned_attention, made on the host from a step's lengths: units of queries against
// keys, and which of them are merged. Long contexts are split into parts (FlashDecoding: Dao et
// al., 2023); a prefix that the first rows share is read once for all of them (cascade attention:
// Ye et al., 2024). Pure; any thread.

#include <cstdint>
#include <span>

namespace refrain::kernels {

// Queries of tokens [token, token + tokens) of the batch against the keys at positions
// [begin, end) of one row, each seeing those up to its own position.
struct AttentionUnit {
  int32_t row = 0;  // whose blocks; of a shared prefix the first row's
  int32_t token = 0, tokens = 0;
  int32_t begin = 0, end = 0;  // begin: a multiple of kPlanKeys
  int32_t position = 0;        // of the first token; of a shared prefix `end`: all see all of it.
                               // -1: only the device knows it, and the end
  int32_t part = -1;           // of each token's parts; -1: there is no other, and no merge
  int32_t row_tokens = 0;      // of its row, in all its units; 0: of a shared prefix
};

inline constexpr int32_t kPlanKeys = 64;       // parts begin at multiples of it
inline constexpr int32_t kPlanQueries = 64;    // tokens times query heads a KV head, of a unit
inline constexpr int32_t kPlanPartKeys = 128;  // of a part at least
// The same where rows share a prefix: they are many, and need no further blocks.
inline constexpr int32_t kCascadePartKeys = 512;
inline constexpr int32_t kMaxPlanParts = 8;  // of a token, half of them of a shared prefix

// Its place in memory, in int32: [0] units, [1] tokens, what a shared prefix has; from kPlanHeader
// on where each token's parts begin, [max_tokens + 1]; then the units, a shared prefix's first.
inline constexpr int32_t kPlanSharedRows = 3, kPlanPrefixKeys = 4;
inline constexpr int32_t kPlanPrefixUnits = 5, kPlanPrefixParts = 6;  // parts: of a token
inline constexpr int32_t kPlanHeader = 8;
inline constexpr int32_t kUnitInts = sizeof(AttentionUnit) / sizeof(int32_t);

struct AttentionPlanShape {
  int32_t max_tokens = 0, max_reqs = 0;
  int32_t split_tokens = 1;  // a row of at most so many is split into parts
  int32_t group = 1;         // query heads a KV head
  int32_t max_blocks = 0;    // of a row of the block table

  int32_t unit_tokens() const { return group < kPlanQueries ? kPlanQueries / group : 1; }
  int32_t split_rows_tokens() const {
    const int64_t most = int64_t{max_reqs} * split_tokens;
    return static_cast<int32_t>(most < max_tokens ? most : max_tokens);
  }
  int32_t max_parts() const { return split_rows_tokens() * kMaxPlanParts; }
  // Of a launch for so many tokens and requests; with a shared prefix its units, too.
  int32_t max_units(int32_t tokens, int32_t reqs, bool cascade) const {
    const int32_t tiles = tokens / unit_tokens() + 1;
    return tiles + reqs * (kMaxPlanParts + (split_tokens - 1) / unit_tokens() * kMaxPlanParts) +
           (cascade ? tiles * kMaxPlanParts / 2 : 0);
  }
  // Where rows are too many to be split.
  int32_t usual_units(int32_t tokens, int32_t reqs) const {
    return (tokens / unit_tokens() + 1) * (kMaxPlanParts / 2) + reqs;
  }
  int32_t units_at() const { return kPlanHeader + max_tokens + 1; }
  int32_t ints() const { return units_at() + max_units(max_tokens, max_reqs, true) * kUnitInts; }
};

struct AttentionRows {
  std::span<const int32_t> slots, tokens;  // of each row
  std::span<const int32_t> computed;  // in the cache before them; negative: only the device knows
  int32_t shared_prefix = 0;   // keys that the first rows begin with; these are rows that are split
  int32_t shared_rows = 0;     // so many
  int32_t sliding_window = 0;  // 0: full attention; else no prefix is shared
};

// Whose plan it is: of planned_attention, or of flashinfer_attention.
enum class AttentionPlanKind : uint8_t { kNone, kUnits, kFlashinfer };

// Writes the plan into AttentionPlanShape::ints() of memory and returns how many of them it is; the
// first is the number of units. How a row is split follows from its own length (and the shared
// prefix) alone.
int32_t make_attention_plan(const AttentionPlanShape& shape, const AttentionRows& rows,
                            int32_t* plan);

// The plan of FlashInfer's batch kernels, in the same memory: arrays in int32, `valid` in bytes.
// Where each row has one token, keys are split so that the device has enough blocks; else they are
// not. Rows share no prefix. Launches read it at the places that the shape gives.
struct FlashinferPlan {
  int32_t units = 0;  // at most
  int32_t key_chunk, num_tokens, page_start, out_start, merge_start, row, query_tile, key_tile,
      valid, end;

  explicit FlashinferPlan(const AttentionPlanShape& shape);
  // Queries (tokens times group) of a tile.
  static int32_t tile(const AttentionPlanShape& shape, bool one_token_a_row) {
    return one_token_a_row && shape.group <= 16 ? 16 : 64;
  }
};
int32_t make_flashinfer_plan(const AttentionPlanShape& shape, const AttentionRows& rows,
                             int32_t* plan);

}  // namespace refrain::kernels
