#pragma once
// The steps in flight, and what an answer to the oldest means for its requests: what is computed,
// which tokens there are, who has ended. Owned by the Scheduler, on the engine's executor.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/sched/draft_control.h"
#include "runtime/sched/planned_step.h"
#include "runtime/sched/request_transfers.h"
#include "runtime/sched/scheduler_options.h"
#include "runtime/sched/sequence_queues.h"

namespace refrain {

// What a step's result means for one request.
struct TokenEvent {
  RequestId id = 0;
  size_t index = 0;   // of the token in the result, for its log-probabilities
  TokenId token = 0;  // with StopCause::kNoLogit and kGrammar there is none
  int32_t cached_tokens = 0;
  TimePoint scheduled{};  // when its first step was planned
  StopCause stop = StopCause::kNone;
  std::shared_ptr<const ipc::PromptScores> prompt;   // with the first token, when asked for
  std::shared_ptr<const std::vector<float>> pooled;  // of a model that pools: instead of a token
};

class StepResults {
 public:
  // All outlive it.
  StepResults(const SchedulerOptions& options, SequenceQueues& queues, BlockPools& pools,
              RequestTransfers& transfers)
      : options_(options), queues_(queues), pools_(pools), transfers_(transfers) {}

  void sent(PlannedStep step) { in_flight_.push_back(std::move(step)); }
  size_t in_flight() const { return in_flight_.size(); }
  // The group is lost: nobody answers.
  void forget_all() { in_flight_.clear(); }

  // That it answers the oldest step in flight, and each row has as many tokens as it may.
  Status check(const ipc::StepResult& result) const;
  // A checked answer, with one event per sampled token appended to `events`. Requests that leave
  // for another group do so `now`. Returns the step, whose sequences may be gone.
  PlannedStep take(const ipc::StepResult& result, TimePoint now, std::vector<TokenEvent>& events);

  uint64_t generated_tokens() const { return generated_tokens_; }
  const DraftCounts& drafts() const { return drafts_; }

 private:
  void take_progress(const PlannedRow& row, int32_t more);
  void take_token(Sequence& sequence, const ipc::StepResult& result, size_t index,
                  std::vector<TokenEvent>& events);
  std::shared_ptr<const std::vector<float>> pooled_of(const ipc::StepResult& result,
                                                      size_t index) const;
  void end_for_grammar(Sequence& sequence, std::vector<TokenEvent>& events);
  void count_drafts(int32_t drafted, int32_t accepted);

  const SchedulerOptions& options_;
  SequenceQueues& queues_;
  BlockPools& pools_;
  RequestTransfers& transfers_;
  std::deque<PlannedStep> in_flight_;
  uint64_t generated_tokens_ = 0;
  DraftCounts drafts_;
};

}  // namespace refrain
