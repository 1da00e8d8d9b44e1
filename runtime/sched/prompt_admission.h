#pragma once
// Whether a prompt that waits begins to run in this step, and with how many tokens: what is cached
// of it, the place of its LoRA adapter, blocks and the step's room decide. Owned by the Scheduler,
// on the engine's executor.

#include <cstdint>

#include "runtime/sched/sequence_queues.h"
#include "runtime/sched/step_builder.h"

namespace refrain {

class PromptAdmission {
 public:
  // All outlive it.
  PromptAdmission(const SchedulerOptions& options, const SequenceQueues& queues,
                  SequenceResources& resources, const StepBuilder& step)
      : options_(options), queues_(queues), resources_(resources), step_(step) {}

  // Who waits for its LoRA adapter is passed by those whose adapter has a place, as long as
  // AdapterPlaces lets them.
  bool adapter_may_enter(const Sequence& sequence) {
    return resources_.adapters().may_enter(sequence.params.adapter, sequence.id);
  }
  // More of it is to be computed than a step has for prompts, or than the threshold says. Of a
  // waiting one: what is cached of it, as far as was looked, does not count.
  bool is_long(const Sequence& sequence) const;
  // Gives a waiting sequence what it needs to run, with the blocks of all its known tokens, so that
  // only decoding ever asks for more; of a group with a window those of its first row. Returns the
  // tokens of that row, at most `most`; 0: it does not fit now.
  int32_t admit(Sequence& sequence, int32_t most);

  uint64_t prompt_tokens() const { return prompt_tokens_; }
  uint64_t cached_prompt_tokens() const { return cached_prompt_tokens_; }

 private:
  int32_t in_whole_tiles(int32_t first_row) const;
  bool computed_by_another(const Sequence& sequence) const;

  const SchedulerOptions& options_;
  const SequenceQueues& queues_;
  SequenceResources& resources_;
  const StepBuilder& step_;
  uint64_t prompt_tokens_ = 0, cached_prompt_tokens_ = 0;
};

}  // namespace refrain
