// The part of Scheduler that finds blocks which all rows of a decode step begin with (CG-13).

#include <algorithm>

#include "runtime/sched/scheduler.h"

namespace refrain {
namespace {

// Whether two sequences have the same block there, in all groups that cascade attention reads.
// Blocks are found in the prefix cache from the first one on, each by all tokens up to its end:
// where one is the same, so is what stands in those before it.
bool same_block(const std::vector<ipc::StateGroup>& groups, const Sequence& a, const Sequence& b,
                int32_t index) {
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].cascade_keys == 0) continue;
    const auto& of_a = a.held[group].blocks;
    const auto& of_b = b.held[group].blocks;
    const auto at = static_cast<size_t>(index);
    if (at >= of_a.size() || at >= of_b.size() || of_a[at].id() != of_b[at].id()) return false;
  }
  return true;
}

}  // namespace

int64_t Scheduler::least_cascade_keys() const {
  int64_t least = 0;
  for (const ipc::StateGroup& group : options_.groups) least = std::max(least, group.cascade_keys);
  return least;
}

// Leading blocks that are the same in all rows, whose tokens are all computed.
int32_t Scheduler::shared_blocks() const {
  const Sequence& first = *building_.rows.front().sequence;
  int32_t blocks = std::numeric_limits<int32_t>::max();
  for (const Row& row : building_.rows) {
    // What is computed is known for sure up to the last answer.
    const int32_t computed =
        row.computed == ipc::kComputedOnDevice ? row.sequence->num_computed : row.computed - 1;
    blocks = std::min(blocks, computed / options_.block_size);
    const auto shares = [&](int32_t index) {
      return same_block(options_.groups, first, *row.sequence, index);
    };
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
void Scheduler::set_cascade(ipc::Step& step) {
  step.cascade = false;
  step.shared_prefix = 0;
  const ipc::ForwardMode mode = step.runs.front().mode;
  const auto rows = static_cast<int64_t>(building_.rows.size());
  const bool decodes = mode == ipc::ForwardMode::kDecode || mode == ipc::ForwardMode::kTargetVerify;
  if (cascade_keys_ == 0 || rows < 2 || !decodes) return;
  const int32_t prefix = shared_blocks() * options_.block_size;
  if ((rows - 1) * prefix < cascade_keys_) return;
  step.cascade = true;
  step.shared_prefix = prefix;
  ++stats_.cascade_steps;
}

}  // namespace refrain
