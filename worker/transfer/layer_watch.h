#pragma once
// Reads of blocks that a rank of another group still writes: each is due when the flag of its layer
// says that the step has passed it (KvExport::layer_flags). Flags are read as blocks are, by any
// transport. Transfer thread.

#include <vector>

#include "runtime/base/ids.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

class LayerWatch {
 public:
  // `reads` of one rank, whose flags stand behind its `num_regions` regions.
  LayerWatch(std::vector<Read> reads, size_t num_regions, StepId step)
      : waiting_(std::move(reads)), flags_(num_regions), step_(static_cast<uint32_t>(step)) {}

  // The read of all flags. What it writes is this object's, which outlives it.
  Read look() {
    return {flags_.size(), 0, reinterpret_cast<std::byte*>(flags_.data()),
            flags_.size() * sizeof(uint64_t)};
  }
  // After a look: the reads of layers that the step has passed since the one before.
  std::vector<Read> take_passed();
  bool waits() const { return !waiting_.empty(); }
  void give_up() { waiting_.clear(); }

 private:
  std::vector<Read> waiting_;
  std::vector<uint64_t> flags_;  // by region, as they were seen last
  uint32_t step_;
};

}  // namespace refrain::worker
