#pragma once
// Cascade attention (CG-13): the blocks that all rows of a decode step begin with, and whether it
// pays to read them once for all. Pure; owned by the StepBuilder.

#include <cstdint>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/planned_step.h"

namespace refrain {

class Cascade {
 public:
  Cascade(const std::vector<ipc::StateGroup>& groups, int32_t block_size);

  // Tokens that all rows begin with and that are read once; 0: there are none, or too few of them.
  int32_t prefix(ipc::ForwardMode mode, const std::vector<PlannedRow>& rows) const;

 private:
  int32_t shared_blocks(const std::vector<PlannedRow>& rows) const;
  bool same_block(const Sequence& a, const Sequence& b, int32_t index) const;

  std::vector<size_t> groups_;  // that cascade attention reads
  const int32_t block_size_;
  int64_t least_keys_ = 0;  // that it must spare a step
};

}  // namespace refrain
