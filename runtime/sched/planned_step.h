#pragma once
// A step that is planned or in flight, as the coordinator remembers it until its answer is in.
// Plain records.

#include <cstdint>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/sched/sequence.h"

namespace refrain {

struct PlannedRow {
  Sequence* sequence;
  int32_t computed;    // tokens in the KV cache after the step; kComputedOnDevice: it verifies
  int32_t least;       // tokens that come of it: 1 where it samples
  int32_t most;        // more than that where drafts may be right
  int32_t scored = 0;  // prompt tokens that it scores
  int32_t from = 0;    // of them the first is the one after so many

  // One token behind others, or drafts to verify; else a chunk of a prompt.
  bool decodes() const {
    return computed == ipc::kComputedOnDevice || (from > 0 && computed - from == 1);
  }
};

struct PlannedStep {
  StepId step = 0;
  std::vector<PlannedRow> rows;
  int32_t query_len = 1;  // of its decodes
};

}  // namespace refrain
