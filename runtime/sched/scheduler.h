#pragma once
// Continuous batching over a paged KV cache: which rows the next step has, and what its result
// means (docs/scheduling.md). schedule() may be called again before the last step's result is in:
// rows then advance on tokens that only the device knows. Owned by the engine, on its executor;
// one life per worker group and epoch. Its parts own what they use: the queues, what sequences
// hold, the planners of decodes and prompts, the step that is built, the results.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/sched/decode_planner.h"
#include "runtime/sched/preemption.h"
#include "runtime/sched/prefill_planner.h"
#include "runtime/sched/prompt_admission.h"
#include "runtime/sched/request_transfers.h"
#include "runtime/sched/scheduler_options.h"
#include "runtime/sched/sequence_queues.h"
#include "runtime/sched/sequence_resources.h"
#include "runtime/sched/split_prefill.h"
#include "runtime/sched/step_builder.h"
#include "runtime/sched/step_results.h"

namespace refrain {

struct SchedulerStats {
  uint64_t waiting = 0, running = 0;
  uint64_t steps_in_flight = 0;  // sent and not answered
  uint64_t preemptions = 0;
  uint64_t cascade_steps = 0;
  uint64_t prompt_tokens = 0, cached_prompt_tokens = 0, generated_tokens = 0;
  DraftCounts drafts;
  uint64_t leases = 0;                        // blocks held for other groups, now
  uint64_t leases_expired = 0;                // not renewed in time
  TransferCounts transfers;                   // from other groups
  int64_t blocks_total = 0, blocks_free = 0;  // of the state group that is fullest
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);

  // Queues a request: a new one, or one that the scheduler of a lost group handed back, which goes
  // on after the tokens it has. Refused when it could not run even alone: longer than the model or
  // than the KV cache. `given` digests its prompt and the tokens its client was given: when they
  // are not the sequence's, going on would leave a gap in the stream or repeat a part of it, and it
  // is refused too. Its id must be new.
  Status add(std::unique_ptr<Sequence> sequence, const TokenDigest& given);
  // Takes a request out; a row of it in an in-flight step is computed and discarded. False: no
  // such request (it has ended).
  bool cancel(RequestId id);
  // Null: it has ended; valid until the next call.
  const Sequence* find(RequestId id) const { return queues_.find(id); }

  void limit_chunks(ChunkLimits limits) { step_.limit_chunks(limits); }
  // The next step, valid until the next call; null when there is nothing to run now. Requests that
  // begin with it are told to have begun `now`.
  const StepPlan* schedule(TimePoint now = {});
  // A step without rows, for a replica that has nothing to run while others have (CG-17); as
  // schedule().
  const StepPlan& idle_step();
  // What the replicas of the step that was planned last run, its own size included.
  const StepPlan& set_together(std::vector<ipc::StepSize> sizes) {
    step_.set_together(std::move(sizes));
    return step_.plan();
  }
  // The answer to the oldest step in flight. Appends one event per sampled token to `events`. An
  // error (a malformed answer) changes nothing.
  Status update(const ipc::StepResult& result, std::vector<TokenEvent>& events);
  // How long the step that was answered last took: whether drafts pay follows from it.
  void took(double seconds) { decodes_.took(seconds); }

  // All ranks have the LoRA adapter: its requests may run.
  void adapter_loaded(AdapterId id) { resources_.adapters().loaded(id); }
  bool adapter_in_use(AdapterId id) const { return resources_.adapters().in_use(id); }
  // None of its requests is left, in flight neither.
  void adapter_unloaded(AdapterId id) { resources_.adapters().unloaded(id); }

  // Requests between groups. A request that `hands_over` leaves with its next token, its blocks
  // under a lease (Sequence::source). One that comes with a source waits for a slot and blocks,
  // which the ranks fill; it runs when all of them have and the lease's COMMIT is valid.
  std::vector<std::unique_ptr<Sequence>> take_handed_over() {
    return transfers_.take_handed_over();
  }
  // Those that leave when a step that was sent has ended, and those of them that do not, after all.
  std::vector<PromisedRequest> take_promised() { return transfers_.take_promised(); }
  std::vector<RequestId> take_withdrawn() { return transfers_.take_withdrawn(); }
  // One that another group has promised: the ranks begin to pull, and what they have counts when it
  // comes. False: there is no room, or no need. forget(): it does not come.
  bool expect(PromisedRequest request, TimePoint now) {
    return transfers_.expect(std::move(request), now);
  }
  void forget(RequestId id) { transfers_.forget(id); }
  // A rank says how far it is with the blocks that it pulls.
  void pulled(int32_t rank, const ipc::Pulled& report, TimePoint now) {
    transfers_.pulled(rank, report, now);
  }
  // Gives up what is overdue, and renews the leases of those that wait here.
  void check_transfers(TimePoint now) { transfers_.check(now); }
  bool has_transfers() const { return transfers_.any(); }
  // Called when another group has read blocks of this one, just before they are free.
  void when_given_back(std::function<void()> call) { transfers_.when_given_back(std::move(call)); }
  // What all ranks are to be told.
  std::vector<ipc::Message> take_orders() { return transfers_.take_orders(); }
  std::vector<MovedBlocks> take_moved() { return transfers_.take_moved(); }  // that are done
  // Those whose blocks did not come: they hold nothing, and go on from their tokens elsewhere.
  std::vector<std::unique_ptr<Sequence>> take_failed() { return transfers_.take_failed(); }

  size_t steps_in_flight() const { return results_.in_flight(); }
  // Requests with a row in a step in flight, those that have ended since included.
  size_t requests_in_flight() const { return queues_.requests_in_flight(); }
  size_t num_unfinished() const { return queues_.num_unfinished(); }
  size_t num_waiting() const { return queues_.waiting().size() + queues_.receiving().size(); }
  SchedulerStats stats() const;
  // Every request that has not ended, oldest first, with the tokens it has; the scheduler is empty
  // afterwards. What is in flight counts as lost with its group of workers; where nothing is, the
  // scheduler serves on.
  std::vector<std::unique_ptr<Sequence>> release_all();

 private:
  Status check(const Sequence& sequence, const TokenDigest& given) const;

  const SchedulerOptions options_;
  SequenceResources resources_;
  SequenceQueues queues_;
  StepBuilder step_;
  RequestTransfers transfers_;
  Preemption preemption_;
  PromptAdmission admission_;
  DecodePlanner decodes_;
  PrefillPlanner prompts_;
  SplitPrefill split_;
  StepResults results_;
  TimePoint now_{};  // of the last step
};

}  // namespace refrain
