#include "runtime/sched/cascade.h"

#include <algorithm>
#include <limits>

namespace refrain {

Cascade::Cascade(const std::vector<ipc::StateGroup>& groups, int32_t block_size)
    : block_size_(block_size) {
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].cascade_keys == 0) continue;
    groups_.push_back(group);
    least_keys_ = std::max(least_keys_, groups[group].cascade_keys);
  }
}

// Whether two sequences have the same block there, in all groups that cascade attention reads.
// Blocks are found in the prefix cache from the first one on, each by all tokens up to its end:
// where one is the same, so is what stands in those before it.
bool Cascade::same_block(const Sequence& a, const Sequence& b, int32_t index) const {
  return std::ranges::all_of(groups_, [&](size_t group) {
    const auto& of_a = a.held[group].blocks;
    const auto& of_b = b.held[group].blocks;
    const auto at = static_cast<size_t>(index);
    return at < of_a.size() && at < of_b.size() && of_a[at].id() == of_b[at].id();
  });
}

// Leading blocks that are the same in all of them, whose tokens are all computed.
int32_t Cascade::shared_blocks(std::span<const PlannedRow> decodes) const {
  const Sequence& first = *decodes.front().sequence;
  int32_t blocks = std::numeric_limits<int32_t>::max();
  for (const PlannedRow& row : decodes) {
    // What is computed is known for sure up to the last answer.
    const int32_t computed =
        row.computed == ipc::kComputedOnDevice ? row.sequence->num_computed : row.computed - 1;
    blocks = std::min(blocks, computed / block_size_);
    const auto shares = [&](int32_t index) { return same_block(first, *row.sequence, index); };
    if (blocks == 0) return 0;
    if (row.sequence == &first || shares(blocks - 1)) continue;
    int32_t same = 0;
    while (same < blocks) {  // the first that differs
      const int32_t middle = (same + blocks) / 2;
      if (shares(middle)) {
        same = middle + 1;
      } else {
        blocks = middle;
      }
    }
  }
  return blocks;
}

// Reading them once spares all rows but one their keys. It pays from so many on
// (docs/scheduling.md).
SharedPrefix Cascade::prefix(std::span<const PlannedRow> rows) const {
  if (least_keys_ == 0) return {};
  const auto chunk = std::ranges::find_if_not(rows, &PlannedRow::decodes);
  const auto decodes = rows.first(static_cast<size_t>(chunk - rows.begin()));
  if (decodes.size() < 2) return {};
  const int32_t tokens = shared_blocks(decodes) * block_size_;
  const auto others = static_cast<int64_t>(decodes.size()) - 1;
  if (others * tokens < least_keys_) return {};
  return {tokens, static_cast<int32_t>(decodes.size())};
}

}  // namespace refrain
