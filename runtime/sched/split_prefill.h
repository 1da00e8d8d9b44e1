#pragma once
// Prompts whose run is cut into parts beside decodes (CG-39): a part of the layers for a whole row,
// then a step of those who decode, so that they wait for a part and not for the row. A row is in
// the cache with its last part; before that it counts as not scheduled. Owned by the Scheduler, on
// the engine's executor.

#include <algorithm>
#include <cstdint>

#include "runtime/sched/prompt_admission.h"
#include "runtime/sched/sequence_queues.h"
#include "runtime/sched/step_builder.h"

namespace refrain {

class SplitPrefill {
 public:
  // All outlive it.
  SplitPrefill(const SchedulerOptions& options, SequenceQueues& queues,
               SequenceResources& resources, StepBuilder& step, PromptAdmission& admission)
      : options_(options),
        queues_(queues),
        resources_(resources),
        step_(step),
        admission_(admission) {}

  // Adds the next part, or the first one of a long row that came up; false: the step is one of
  // others. `others_decode`: some sequence could decode in it.
  bool plan(bool others_decode);
  // Whether a prompt's row is under way in parts.
  bool under_way() const { return in_parts() != nullptr; }
  // The next part of that row.
  void add_next();
  // The step that goes out has a part or has none: decodes come after a part.
  void planned(bool part) { part_before_ = part; }
  bool on() const { return options_.split_prefill > 1; }

 private:
  // Tokens of such a row: a single one that is left of a prompt is scheduled as a decode.
  int32_t least_tokens() const { return std::max(2, options_.split_prefill_tokens); }
  Sequence* in_parts() const;
  bool begin();
  bool may_split(const Sequence& sequence) const;
  void add_part(Sequence& sequence, int32_t num_tokens);

  const SchedulerOptions& options_;
  SequenceQueues& queues_;
  SequenceResources& resources_;
  StepBuilder& step_;
  PromptAdmission& admission_;
  bool part_before_ = false;
};

}  // namespace refrain
