#pragma once
// The decodes of a step: a row for each running sequence whose prompt is computed, with drafts
// where they pay (CG-35). Owned by the Scheduler, on the engine's executor.

#include <cstddef>
#include <cstdint>

#include "runtime/sched/draft_control.h"
#include "runtime/sched/preemption.h"
#include "runtime/sched/sequence_queues.h"
#include "runtime/sched/step_builder.h"

namespace refrain {

class DecodePlanner {
 public:
  // All outlive it.
  DecodePlanner(const SchedulerOptions& options, const SequenceQueues& queues, StepBuilder& step,
                Preemption& preemption)
      : options_(options), queues_(queues), step_(step), preemption_(preemption) {}

  // Tokens of each decode of the next step: one length for all; 1: without drafts, where the step
  // has no room for them or they do not pay.
  int32_t query_len();
  // Adds them to the step. Whether some running sequence may have prompt tokens left.
  bool plan();
  // Whether, of those that run, one could decode in the next step.
  bool any() const;
  // A step was answered with so many tokens, and how long it took: whether drafts pay follows.
  void answered(const PlannedStep& step, size_t tokens);
  void took(double seconds);

 private:
  struct Decoded {  // of the step answered last; no rows: it had others than decodes
    int32_t rows = 0;
    int64_t tokens = 0;
    bool drafts = false;
  };
  bool add_verification(Sequence& sequence);

  const SchedulerOptions& options_;
  const SequenceQueues& queues_;
  StepBuilder& step_;
  Preemption& preemption_;
  DraftControl draft_control_;
  Decoded last_;
};

}  // namespace refrain
