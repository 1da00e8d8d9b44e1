#include "kernels/core/attention_units.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

// Equal parts of whole kPlanKeys, but the last.
struct Parts {
  int32_t begin, end, keys, count;

  Parts(int32_t first, int32_t last, int32_t least, int32_t most) : begin(first), end(last) {
    const int32_t all = std::max(1, last - first);
    const int32_t wanted = std::clamp((all + least - 1) / least, 1, most);
    keys = ((all + wanted - 1) / wanted + kPlanKeys - 1) / kPlanKeys * kPlanKeys;
    count = (all + keys - 1) / keys;
  }
  int32_t begin_of(int32_t part) const { return begin + part * keys; }
  int32_t end_of(int32_t part) const { return std::min(end, begin + (part + 1) * keys); }
};

class Planner {
 public:
  Planner(const AttentionPlanShape& shape, const AttentionRows& rows, int32_t* plan)
      : shape_(shape), rows_(rows), plan_(plan) {}

  int32_t run() {
    int32_t tokens = 0;
    for (const int32_t count : rows_.tokens) tokens += count;
    REFRAIN_CHECK(tokens <= shape_.max_tokens && std::ssize(rows_.tokens) <= shape_.max_reqs,
                  "attention plan: {} tokens of {} rows, at most {} of {}", tokens,
                  rows_.tokens.size(), shape_.max_tokens, shape_.max_reqs);
    const Parts prefix(0, rows_.shared_prefix, kCascadePartKeys, kMaxPlanParts / 2);
    const int32_t before = rows_.shared_prefix > 0 ? prefix.count : 0;
    int32_t sharing = 0;  // tokens
    for (const int32_t count : rows_.tokens.first(shared_rows())) sharing += count;
    for (int32_t part = 0; part < before; ++part)
      add({.tokens = sharing,
           .begin = prefix.begin_of(part),
           .end = prefix.end_of(part),
           .position = prefix.end,
           .part = part},
          true);
    plan_[kPlanSharedRows] = before > 0 ? rows_.shared_rows : 0;
    plan_[kPlanPrefixKeys] = rows_.shared_prefix;
    plan_[kPlanPrefixUnits] = units_;
    plan_[kPlanPrefixParts] = before;
    for (size_t row = 0; row < rows_.tokens.size(); ++row)
      add_row(row, row < shared_rows() ? before : 0);
    plan_[kPlanHeader + token_] = parts_;
    plan_[0] = units_;
    plan_[1] = tokens;
    return shape_.units_at() + units_ * kUnitInts;
  }

 private:
  size_t shared_rows() const { return static_cast<size_t>(rows_.shared_rows); }

  // The keys of a row, after the shared prefix if it has `before` parts of one.
  void add_row(size_t row, int32_t before) {
    const int32_t tokens = rows_.tokens[row], computed = rows_.computed[row];
    const bool splits = tokens <= shape_.split_tokens, known = computed >= 0;
    REFRAIN_CHECK(before == 0 || (splits && (!known || computed >= rows_.shared_prefix)),
                  "attention plan: row {} of {} tokens after {} shares a prefix of {}", row, tokens,
                  computed, rows_.shared_prefix);
    int32_t begin = before > 0 ? rows_.shared_prefix : 0;
    if (rows_.sliding_window > 0 && known)
      begin = std::max(0, computed - rows_.sliding_window + 1) / kPlanKeys * kPlanKeys;
    const Parts parts(begin, known ? computed + tokens : begin + 1,
                      rows_.shared_prefix > 0 ? kCascadePartKeys : kPlanPartKeys,
                      splits ? kMaxPlanParts - before : 1);
    for (int32_t i = 0; i < tokens; ++i) {
      plan_[kPlanHeader + token_ + i] = parts_;
      if (before + parts.count > 1) parts_ += before + parts.count;
    }
    for (int32_t part = 0; part < parts.count; ++part)
      add({.row = static_cast<int32_t>(row),
           .token = token_,
           .tokens = tokens,
           .begin = parts.begin_of(part),
           .end = parts.end_of(part),
           .position = known ? computed : -1,
           .part = before + parts.count > 1 ? before + part : -1,
           .row_tokens = tokens},
          false);
    token_ += tokens;
  }

  // As many units as its tokens need.
  void add(const AttentionUnit& all, bool shared) {
    for (int32_t done = 0; done < all.tokens; done += shape_.unit_tokens()) {
      AttentionUnit unit = all;
      unit.token += done;
      unit.tokens = std::min(shape_.unit_tokens(), all.tokens - done);
      if (!shared && all.position >= 0) {
        unit.position += done;
        // None of its tokens may see any: then the part is there, and empty.
        unit.end = std::max(unit.begin, std::min(unit.end, unit.position + unit.tokens));
      }
      std::memcpy(plan_ + shape_.units_at() + units_ * kUnitInts, &unit, sizeof unit);
      ++units_;
    }
  }

  const AttentionPlanShape& shape_;
  const AttentionRows& rows_;
  int32_t* plan_;
  int32_t units_ = 0, parts_ = 0, token_ = 0;
};

}  // namespace

int32_t make_attention_plan(const AttentionPlanShape& shape, const AttentionRows& rows,
                            int32_t* plan) {
  return Planner(shape, rows, plan).run();
}

FlashinferPlan::FlashinferPlan(const AttentionPlanShape& shape)
    : units(shape.max_reqs * (kMaxPlanParts + 1) +
            static_cast<int32_t>(int64_t{shape.max_tokens} * shape.group / 64)) {
  int32_t next = kPlanHeader;
  const auto take = [&next](int32_t ints) {  // of whole 16 bytes
    const int32_t at = next;
    next += (ints + 3) / 4 * 4;
    return at;
  };
  key_chunk = 2;
  num_tokens = 1;
  page_start = take(shape.max_reqs + 1);
  out_start = take(shape.max_reqs + 1);
  merge_start = take(shape.max_tokens + 1);
  row = take(units);
  query_tile = take(units);
  key_tile = take(units);
  valid = take(units / 4 + 1);
  end = next;
}

int32_t make_flashinfer_plan(const AttentionPlanShape& shape, const AttentionRows& rows,
                             int32_t* plan) {
  const FlashinferPlan at(shape);
  REFRAIN_CHECK(at.end <= shape.ints() && std::ssize(rows.tokens) <= shape.max_reqs,
                "attention plan: {} rows, at most {}", rows.tokens.size(), shape.max_reqs);
  int32_t tokens = 0, longest = 1;
  bool one_each = true, known = true;
  for (size_t row = 0; row < rows.tokens.size(); ++row) {
    tokens += rows.tokens[row];
    longest = std::max(longest, rows.computed[row] + rows.tokens[row]);
    one_each = one_each && rows.tokens[row] == 1;
    known = known && rows.computed[row] >= 0;
  }
  const int32_t tile = FlashinferPlan::tile(shape, one_each);
  // No row has more than kMaxPlanParts; unknown lengths are not split.
  const int32_t chunk =
      std::max(kPlanPartKeys, (longest + kMaxPlanParts - 1) / kMaxPlanParts + kPlanKeys) /
      kPlanKeys * kPlanKeys;
  const bool splits = one_each && known;
  plan[at.key_chunk] = splits ? chunk : std::numeric_limits<int32_t>::max() / 2;
  plan[at.num_tokens] = tokens;
  std::fill_n(plan + at.valid, at.units / 4 + 1, 0);
  auto* valid = reinterpret_cast<uint8_t*>(plan + at.valid);
  int32_t units = 0, token = 0, parts = 0;
  for (size_t row = 0; row < rows.tokens.size(); ++row) {
    const auto r = static_cast<int32_t>(row);
    plan[at.page_start + r] = rows.slots[row] * shape.max_blocks;
    plan[at.out_start + r] = parts;
    int32_t keys = rows.computed[row] + rows.tokens[row];
    if (rows.sliding_window > 0) keys = std::min(keys, rows.sliding_window + tile);
    const int32_t chunks = splits ? (keys + chunk - 1) / chunk : 1;
    const int32_t tiles = (rows.tokens[row] * shape.group + tile - 1) / tile;
    for (int32_t i = 0; i < tiles * chunks; ++i, ++units) {
      plan[at.row + units] = r;
      plan[at.query_tile + units] = i / chunks;
      plan[at.key_tile + units] = i % chunks;
      valid[units] = 1;
    }
    for (int32_t i = 0; i < rows.tokens[row]; ++i, ++token, parts += chunks)
      plan[at.merge_start + token] = parts;
  }
  const auto count = static_cast<int32_t>(rows.tokens.size());
  // The end of the block table, whatever the launch is padded to: tiles look up keys beyond a row's
  // end, which no table may have.
  std::fill_n(plan + at.page_start + count, shape.max_reqs + 1 - count,
              (shape.max_reqs + 1) * shape.max_blocks);
  plan[at.out_start + count] = plan[at.merge_start + tokens] = parts;
  plan[0] = units;
  return at.end;
}

}  // namespace refrain::kernels
