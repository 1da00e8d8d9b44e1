#pragma once
// Cascade attention (CG-13): the blocks that all decodes of a step begin with, and whether it pays
// to read them once for all. Pure; owned by the StepBuilder.

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/planned_step.h"

namespace refrain {

struct SharedPrefix {
  int32_t tokens = 0;  // that the first rows begin with and that are read once; 0: none
  int32_t rows = 0;    // so many
};

class Cascade {
 public:
  Cascade(const std::vector<ipc::StateGroup>& groups, int32_t block_size);

  // Of a step's decodes, which are its first rows; none where it would spare too little.
  SharedPrefix prefix(std::span<const PlannedRow> rows) const;

 private:
  int32_t shared_blocks(std::span<const PlannedRow> decodes) const;
  bool same_block(const Sequence& a, const Sequence& b, int32_t index) const;

  std::vector<size_t> groups_;  // that cascade attention reads
  const int32_t block_size_;
  int64_t least_keys_ = 0;  // that it must spare a step
};

}  // namespace refrain
