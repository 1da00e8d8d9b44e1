#pragma once
// Continuous batching over a paged KV cache: which rows the next step has, and what its result
// means (docs/scheduling.md). schedule() may be called again before the last step's result is in:
// rows then advance on tokens that only the device knows. Owned by the engine, on its executor;
// one life per worker group and epoch.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ipc/protocol/limits.h"
#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/sched/adapter_places.h"
#include "runtime/sched/block_leases.h"
#include "runtime/sched/block_pools.h"
#include "runtime/sched/draft_control.h"
#include "runtime/sched/kv_arrivals.h"
#include "runtime/sched/sequence.h"

namespace refrain {

struct SchedulerOptions {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 2048;
  int32_t block_size = 16;
  std::vector<ipc::StateGroup> groups;  // of the model, with the blocks that all ranks have
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  // A prompt of which more tokens are to be computed is long: short ones run beside it. 0: more
  // than one step may have.
  int32_t long_prefill_token_threshold = 0;
  int32_t split_prefill = 1;  // parts of a prompt's run beside decodes (CG-39); 1: it is not cut
  int32_t split_prefill_tokens = 256;  // that a row must have to be cut
  double watermark = 0.01;   // share of the blocks that admission leaves free for running requests
  int32_t num_drafts = 0;    // that a row verifies at most; 0: no speculation
  bool draft_model = false;  // makes them: a run of its own, with room for them in its blocks
  bool draft_head = false;   // of these: keeps a token beside the state of the one before it
  int32_t max_loras = 0;     // LoRA adapters of a step: places of the workers
  std::vector<TokenId> eos_token_ids;
  int64_t pooled_cols = 0;  // numbers of the vector that a prompt gives; 0: the model generates
  double audit_rate = 0;    // share of the steps that are audited (CG-41)
  size_t max_step_bytes = ipc::kMaxStepBytes;  // of a step's payload
  // Between groups: ranks of this one, and how long a transfer may be without progress. A lease
  // holds for twice that without being renewed.
  int32_t num_ranks = 1;
  Duration transfer_timeout = std::chrono::seconds(10);
};

// One step's decision, as it goes to every rank: one run of the language model.
struct StepPlan {
  ipc::Message message = ipc::Step{};  // always a Step
  ipc::Step& step() { return std::get<ipc::Step>(message); }
  const ipc::Step& step() const { return std::get<ipc::Step>(message); }
};

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

struct SchedulerStats {
  uint64_t waiting = 0, running = 0;
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
  const Sequence* find(RequestId id) const;  // null: it has ended; valid until the next call

  // Prompt tokens that a step has at most, within its budget; ignored without chunked prefill.
  void limit_chunks(int32_t tokens) { chunk_limit_ = tokens; }
  // The next step, valid until the next call; null when there is nothing to run now. Requests that
  // begin with it are told to have begun `now`.
  const StepPlan* schedule(TimePoint now = {});
  // The answer to the oldest step in flight. Appends one event per sampled token to `events`. An
  // error (a malformed answer) changes nothing.
  Status update(const ipc::StepResult& result, std::vector<TokenEvent>& events);

  // All ranks have the LoRA adapter: its requests may run.
  void adapter_loaded(AdapterId id) { adapters_.loaded(id); }
  bool adapter_in_use(AdapterId id) const { return adapters_.in_use(id); }
  // None of its requests is left, in flight neither.
  void adapter_unloaded(AdapterId id) { adapters_.unloaded(id); }

  // Requests between groups, in scheduler_transfers.cpp. A request that `hands_over` leaves with
  // its next token, its blocks under a lease (Sequence::source). One that comes with a source waits
  // for a slot and blocks, which the ranks fill; it runs when all of them have and the lease's
  // COMMIT is valid.
  std::vector<std::unique_ptr<Sequence>> take_handed_over() {
    return std::exchange(handed_over_, {});
  }
  // A rank says how far it is with the blocks that it pulls.
  void pulled(int32_t rank, const ipc::Pulled& report, TimePoint now);
  // Gives up what is overdue, and renews the leases of those that wait here.
  void check_transfers(TimePoint now);
  bool has_transfers() const {
    return leases_.size() > 0 || !arrivals_.empty() || sourced_ > 0 || !failed_.empty();
  }
  // What all ranks are to be told.
  std::vector<ipc::Message> take_orders() { return arrivals_.take_orders(); }
  std::vector<MovedBlocks> take_moved() { return arrivals_.take_moved(); }  // transfers, since then
  // Those whose blocks did not come: they hold nothing, and go on from their tokens elsewhere.
  std::vector<std::unique_ptr<Sequence>> take_failed() { return std::exchange(failed_, {}); }

  // How long the step that was answered last took: whether drafts pay follows from it.
  void took(double seconds);

  size_t steps_in_flight() const { return in_flight_.size(); }
  // Requests with a row in a step in flight, those that have ended since included.
  size_t requests_in_flight() const;
  size_t num_unfinished() const { return waiting_.size() + receiving_.size() + running_.size(); }
  SchedulerStats stats() const;
  // Every request that has not ended, oldest first, with the tokens it has; the scheduler is empty
  // afterwards. What is in flight counts as lost with its group of workers; where nothing is, the
  // scheduler serves on.
  std::vector<std::unique_ptr<Sequence>> release_all();

 private:
  struct Row {
    Sequence* sequence;
    int32_t computed;    // tokens in the KV cache after the step; kComputedOnDevice: it verifies
    int32_t least;       // tokens that come of it: 1 where it samples
    int32_t most;        // more than that where drafts may be right
    int32_t scored = 0;  // prompt tokens that it scores
    int32_t from = 0;    // of them the first is the one after so many
  };
  struct InFlight {
    StepId step = 0;
    std::vector<Row> rows;
    int32_t query_len = 1;
  };
  struct Split {  // a prompt's row whose run is under way in parts
    Sequence* sequence = nullptr;
    int32_t num_tokens = 0;
    int32_t next_part = 0;
  };
  struct Decoded {  // of the step answered last; no rows: it had others than decodes
    int32_t rows = 0;
    int64_t tokens = 0;
    bool drafts = false;
  };

  Status check(const Sequence& sequence, const TokenDigest& given) const;
  Status check(const ipc::StepResult& result) const;
  std::shared_ptr<const std::vector<float>> pooled_of(const ipc::StepResult& result,
                                                      size_t index) const;
  static void take_scores(const ipc::PromptScores& told, size_t begin, const Row& row);
  // More than one token of the known ones is not yet in the KV cache.
  static bool chunk_left(const Sequence& sequence) {
    return sequence.length() - sequence.num_scheduled > 1;
  }
  void schedule_decodes();
  void schedule_prompts();
  void schedule_short_prompts();
  void schedule_chunks();
  void schedule_admissions();
  int32_t add_chunk(Sequence& sequence, int32_t most);
  // In scheduler_split.cpp.
  bool schedule_part();
  bool begin_split();
  // Tokens of such a row: a single one that is left of a prompt is scheduled as a decode.
  int32_t least_split() const { return std::max(2, options_.split_prefill_tokens); }
  bool may_split(const Sequence& sequence) const;
  void add_part(Sequence& sequence, int32_t num_tokens);
  bool is_long(const Sequence& sequence) const;
  int32_t tokens_beside_long() const;
  void find_prefix(Sequence& sequence);
  int32_t admit(Sequence& sequence, int32_t most);
  bool computed_by_another(const Sequence& sequence) const;
  // Blocks for `tokens` tokens in all; false: not in this step.
  bool ensure_blocks(Sequence& sequence, int32_t tokens) {
    return tokens <= sequence.tokens_held || make_room(sequence, tokens);
  }
  bool make_room(Sequence& sequence, int32_t tokens);
  void preempt_last();
  // In scheduler_transfers.cpp.
  bool receive(Sequence& sequence);
  void arrive(Sequence& sequence);
  void fail_transfer(const KvArrivals::Ended& ended);
  void hand_over(Sequence& sequence);
  std::unique_ptr<Sequence> take_out(Sequence& sequence);
  bool adapter_may_enter(const Sequence& sequence);
  void run(Sequence& sequence);
  void add_row(Sequence& sequence, int32_t num_tokens);
  void add_decode(Sequence& sequence);
  void add_setup(Sequence& sequence);
  void send_blocks(Sequence& sequence, int32_t tokens);
  // With speculation, in scheduler_drafts.cpp.
  bool verifies(const Sequence& sequence) const;
  int32_t query_len();
  int32_t reach(const Sequence& sequence) const;
  // Tokens behind the one that a row samples that a draft model leaves in its blocks.
  int32_t draft_reach() const { return options_.draft_model ? options_.num_drafts : 0; }
  bool schedule_verification(Sequence& sequence);
  int32_t history_of(int32_t cached) const;
  void add_history(const Sequence& sequence, ipc::SlotSetup& setup);
  // Cascade attention, in scheduler_cascade.cpp.
  int64_t least_cascade_keys() const;
  int32_t shared_blocks() const;
  void set_cascade(ipc::Step& step);
  ipc::Rows& rows() { return plan_.step().runs.front().rows; }
  const ipc::Rows& rows() const { return plan_.step().runs.front().rows; }
  int32_t budget_left() const {
    return options_.max_num_batched_tokens - static_cast<int32_t>(rows().token_ids.size());
  }
  int32_t chunk_budget_left() const;
  // Bytes of a row's token in a step; each may begin a block of each group.
  size_t token_bytes() const {
    return ipc::kStepTokenBytes + pools_.num_paged() * ipc::kBlockUpdateBytes;
  }
  // How many of `wanted` tokens after the first `computed` ones the step still has room for, with
  // all that they bring along: a decode's one token, in blocks that the device knows, nothing.
  int32_t room_for(const Sequence& sequence, int32_t computed, int32_t wanted) const {
    const bool alone = wanted == 1 && sequence.sampled && sequence.setup_sent &&
                       pools_.num_unsent(sequence, computed + draft_reach()) == 0;
    if (!alone) return room_for_more(sequence, computed, wanted);
    const size_t bytes = step_bytes_ + ipc::kStepRowBytes + token_bytes();
    return bytes < options_.max_step_bytes && budget_left() > 0 ? 1 : 0;
  }
  int32_t room_for_more(const Sequence& sequence, int32_t computed, int32_t wanted) const;
  // Of a step's bytes what one request's setup, or its cached blocks, may take: all can be sent.
  size_t largest_part() const { return options_.max_step_bytes / 4; }

  void take_token(Sequence& sequence, const ipc::StepResult& result, size_t index,
                  std::vector<TokenEvent>& events);
  void end_for_grammar(Sequence& sequence, std::vector<TokenEvent>& events);
  void count_drafts(int32_t drafted, int32_t accepted);
  void finish(Sequence& sequence);
  void settle(Sequence& sequence);
  void release(Sequence& sequence);

  const SchedulerOptions options_;
  const int64_t cascade_keys_;  // that cascade attention must spare a step; 0: there is none
  BlockPools pools_;
  BlockLeases leases_;
  KvArrivals arrivals_;
  AdapterPlaces adapters_;
  std::vector<SlotId> free_slots_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  // By priority, then in order of arrival, but for short prompts that have passed long ones.
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;    // by priority, then in order of admission
  std::vector<Sequence*> receiving_;  // they have slot and blocks, which are being filled
  std::vector<std::unique_ptr<Sequence>> handed_over_, failed_;  // until they are taken
  std::vector<ipc::AdapterPlacement> placements_;  // of those that receive; for the next step
  size_t sourced_ = 0;                             // of waiting_: their blocks are in another group
  int32_t holding_ = 0;  // not running, but a row in flight keeps their blocks

  StepId next_step_ = 1;
  StepPlan plan_;
  InFlight building_;
  bool short_of_blocks_ = false;  // in this schedule(): somebody stalled or was preempted
  bool stalled_ = false;          // in this schedule(): somebody waits for blocks that come back
  bool prebuilt_rows_ = false;    // in this step: requests begin whose KV came from another group
  bool adapter_waits_ = false;    // in this schedule(): somebody waits for a LoRA adapter's place
  size_t step_bytes_ = 0;         // of this step's payload
  int64_t scores_left_ = 0;       // entries of prompt_logprobs that this step may still have
  TimePoint now_{};
  int32_t chunk_limit_ = std::numeric_limits<int32_t>::max();
  int32_t num_decodes_ = 0;   // tokens of this step before its chunks
  bool chunks_left_ = false;  // in this schedule(): some running request may have one
  int32_t query_len_ = 1;     // of this step's decodes
  DraftControl draft_control_;
  Decoded last_;
  Split split_;               // no sequence: none is
  bool part_before_ = false;  // the step planned last was a part: decodes come next
  int32_t history_left_ = 0;  // tokens that this step's slots may still begin with
  std::deque<InFlight> in_flight_;
  std::vector<std::vector<Row>> spare_rows_;
  SchedulerStats stats_;
};

}  // namespace refrain
