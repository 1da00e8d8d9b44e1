#pragma once
// Continuous batching over a paged KV cache: which rows the next step has, and what its result
// means (docs/scheduling.md). schedule() may be called again before the last step's result is in:
// rows then advance on tokens that only the device knows. Owned by the engine, on its executor;
// one life per worker group and epoch.

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ipc/protocol/limits.h"
#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/sched/block_manager.h"
#include "runtime/sched/prefix_cache.h"
#include "runtime/sched/sequence.h"

namespace refrain {

struct SchedulerOptions {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  int64_t num_blocks = 2;  // including the reserved block 0
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  double watermark = 0.01;  // share of the blocks that admission leaves free for running requests
  std::vector<TokenId> eos_token_ids;
  double audit_rate = 0;                       // share of the steps that are audited (CG-41)
  size_t max_step_bytes = ipc::kMaxStepBytes;  // of a step's payload
};

// One step's decision, as it goes to every rank.
struct StepPlan {
  ipc::Message message = ipc::Step{};  // always a Step
  ipc::Step& step() { return std::get<ipc::Step>(message); }
  const ipc::Step& step() const { return std::get<ipc::Step>(message); }
};

// What a step's result means for one request.
struct TokenEvent {
  RequestId id = 0;
  int32_t row = 0;    // of the result, for its log-probabilities
  TokenId token = 0;  // with StopCause::kNoLogit there is none
  int32_t cached_tokens = 0;
  StopCause stop = StopCause::kNone;
};

struct SchedulerStats {
  uint64_t waiting = 0, running = 0;
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0, cached_prompt_tokens = 0, generated_tokens = 0;
  int64_t blocks_total = 0, blocks_free = 0;
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
  const Sequence* find(RequestId id) const;  // null: it has ended; valid until the next call

  // Prompt tokens that a step has at most, within its budget; ignored without chunked prefill.
  void limit_chunks(int32_t tokens) { chunk_limit_ = tokens; }
  // The next step, valid until the next call; null when there is nothing to run now.
  const StepPlan* schedule();
  // The answer to the oldest step in flight. Appends one event per sampled token to `events`. An
  // error (a malformed answer) changes nothing.
  Status update(const ipc::StepResult& result, std::vector<TokenEvent>& events);

  size_t steps_in_flight() const { return in_flight_.size(); }
  // Requests with a row in a step in flight, those that have ended since included.
  size_t requests_in_flight() const;
  size_t num_unfinished() const { return waiting_.size() + running_.size(); }
  SchedulerStats stats() const;
  // Every request that has not ended, oldest first, with the tokens it has; the scheduler is empty
  // afterwards. What is in flight counts as lost with its group of workers; where nothing is, the
  // scheduler serves on.
  std::vector<std::unique_ptr<Sequence>> release_all();

 private:
  struct Row {
    Sequence* sequence;
    int32_t computed;  // tokens in the KV cache after the step
    bool samples;
  };
  struct InFlight {
    StepId step = 0;
    std::vector<Row> rows;
  };

  Status check(const Sequence& sequence, const TokenDigest& given) const;
  int32_t blocks_for(int64_t tokens) const;
  bool chunk_left(const Sequence& sequence) const;
  void schedule_decodes();
  void schedule_chunks();
  void schedule_admissions();
  bool admit(Sequence& sequence);
  bool computed_by_another(const Sequence& sequence) const;
  bool ensure_blocks(Sequence& sequence, int64_t tokens);
  void preempt_youngest();
  void add_row(Sequence& sequence, int32_t num_tokens);
  void add_block_updates(Sequence& sequence);
  int32_t budget_left() const;
  int32_t chunk_budget_left() const;
  int32_t room_for(const Sequence& sequence, int32_t computed, int32_t wanted) const;
  // Of a step's bytes what one request's setup, or its cached blocks, may take: all can be sent.
  size_t largest_part() const { return options_.max_step_bytes / 4; }

  void publish(Sequence& sequence);
  void distrust(Sequence& sequence);
  void finish(Sequence& sequence);
  void settle(Sequence& sequence);
  void release(Sequence& sequence);

  const SchedulerOptions options_;
  BlockManager blocks_;
  PrefixCache prefix_cache_;
  std::vector<SlotId> free_slots_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;   // in order of arrival
  std::vector<Sequence*> running_;  // in order of arrival, all older than the waiting ones
  int32_t holding_ = 0;             // not running, but a row in flight keeps their blocks

  StepId next_step_ = 1;
  StepPlan plan_;
  InFlight building_;
  bool short_of_blocks_ = false;  // in this schedule(): somebody stalled or was preempted
  size_t step_bytes_ = 0;         // of this step's payload
  int32_t chunk_limit_ = std::numeric_limits<int32_t>::max();
  int32_t num_decodes_ = 0;  // rows of this step before its chunks
  std::deque<InFlight> in_flight_;
  std::vector<std::vector<Row>> spare_rows_;
  SchedulerStats stats_;
};

}  // namespace refrain
