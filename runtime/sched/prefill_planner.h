#pragma once
// The prompts of a step, behind its decodes: chunks of those that run, then those that wait. Short
// prompts run beside a long one, so that nobody waits for the whole of another's prompt, and the
// long one keeps half of each step's prompt tokens (docs/scheduling.md). Owned by the Scheduler, on
// the engine's executor.

#include <cstdint>

#include "runtime/sched/preemption.h"
#include "runtime/sched/prompt_admission.h"
#include "runtime/sched/request_transfers.h"
#include "runtime/sched/sequence_queues.h"
#include "runtime/sched/step_builder.h"

namespace refrain {

class PrefillPlanner {
 public:
  // So many waiting prompts that were long are looked at again in a step: more of one may be cached
  // by now. A look goes through all that is cached of it.
  static constexpr int32_t kLooksAtLong = 32;

  // All outlive it.
  PrefillPlanner(const SchedulerOptions& options, SequenceQueues& queues,
                 SequenceResources& resources, StepBuilder& step, Preemption& preemption,
                 PromptAdmission& admission, RequestTransfers& transfers)
      : options_(options),
        queues_(queues),
        resources_(resources),
        step_(step),
        preemption_(preemption),
        admission_(admission),
        transfers_(transfers) {}

  // Adds them to the step. `chunks_left`: some running sequence may have prompt tokens left.
  void plan(bool chunks_left);

 private:
  void add_short_prompts();
  int32_t tokens_beside_long() const;
  bool long_prompts_have_blocks();
  void add_chunks();
  int32_t add_chunk(Sequence& sequence, int32_t most);
  void receive_expected();
  // One that waits, whose blocks are in another group. False: there is no room for it now.
  bool receive(SequenceQueues::Waiting::const_iterator& at);
  void admit_waiting();

  const SchedulerOptions& options_;
  SequenceQueues& queues_;
  SequenceResources& resources_;
  StepBuilder& step_;
  Preemption& preemption_;
  PromptAdmission& admission_;
  RequestTransfers& transfers_;
};

}  // namespace refrain
