#pragma once
// Writes rows, and what they bring along, into the step that is being planned, and knows how much
// the step still has room for: tokens, bytes, prompt scores, history. Who gets a row is decided by
// the planners. Owned by the Scheduler, on the engine's executor.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/block_pools.h"
#include "runtime/sched/cascade.h"
#include "runtime/sched/planned_step.h"
#include "runtime/sched/scheduler_options.h"

namespace refrain {

// One step's decision, as it goes to every rank: one run of the language model.
struct StepPlan {
  ipc::Message message = ipc::Step{};  // always a Step
  ipc::Step& step() { return std::get<ipc::Step>(message); }
  const ipc::Step& step() const { return std::get<ipc::Step>(message); }
};

// How many prompt tokens a step may have, within its budget. Ignored without chunked prefill.
struct ChunkLimits {
  int32_t step = std::numeric_limits<int32_t>::max();
  // Of these, of long prompts where others decode. Ignored with split prefill (CG-39), where these
  // wait for a part of the layers only.
  int32_t long_beside_decodes = std::numeric_limits<int32_t>::max();
};

class StepBuilder {
 public:
  // Both outlive it.
  StepBuilder(const SchedulerOptions& options, BlockPools& pools);

  void limit_chunks(ChunkLimits limits) { limits_ = limits; }
  int32_t chunk_limit() const { return limits_.step; }

  // An empty step, planned `now`, whose decodes have `query_len` tokens each.
  void begin(TimePoint now, int32_t query_len);
  // The rows so far are decodes; prompts follow.
  void begin_chunks() {
    num_decodes_ = num_tokens();
    long_tokens_ = 0;
  }
  // The step's run is this part of its Program's pieces.
  void set_part(int32_t part);
  // The step is complete: numbered, with what follows from its rows.
  PlannedStep finish(std::vector<ipc::AdapterPlacement> placements);
  const StepPlan& plan() const { return plan_; }
  // Of the step that is complete: those of all replicas.
  void set_together(std::vector<ipc::StepSize> sizes) { plan_.step().together = std::move(sizes); }
  // Memory of a step that was answered, for the next one.
  void recycle(std::vector<PlannedRow> rows);

  bool empty() const { return building_.rows.empty(); }
  int32_t num_tokens() const { return static_cast<int32_t>(rows().token_ids.size()); }
  StepId number() const { return next_step_; }
  TimePoint now() const { return now_; }
  int32_t query_len() const { return building_.query_len; }
  bool run_ends() const { return plan_.step().runs.front().ends(); }
  bool half_full() const { return step_bytes_ >= options_.max_step_bytes / 2; }  // of its bytes
  int32_t budget_left() const { return options_.max_num_batched_tokens - num_tokens(); }
  int32_t chunk_budget_left() const;  // of the tokens after the decodes
  int32_t long_limit_left() const;    // of ChunkLimits::long_beside_decodes, where it holds
  // How many of `wanted` tokens after the first `computed` ones the step still has room for, with
  // all that they bring along: a decode's one token, in blocks that the device knows, nothing.
  int32_t room_for(const Sequence& sequence, int32_t computed, int32_t wanted) const {
    const bool alone = wanted == 1 && sequence.sampled && sequence.setup_sent &&
                       pools_.num_unsent(sequence, computed + options_.draft_reach()) == 0;
    if (!alone) return room_for_more(sequence, computed, wanted);
    const size_t bytes = step_bytes_ + ipc::kStepRowBytes + token_bytes();
    return bytes < options_.max_step_bytes && budget_left() > 0 ? 1 : 0;
  }

  // A row of the sequence's next `num_tokens` tokens, for which it has blocks.
  void add_row(Sequence& sequence, int32_t num_tokens);
  // A row of the token that the slot has sampled.
  void add_decode(Sequence& sequence);
  // A row that verifies, and leaves at most `end` tokens in the KV cache.
  void add_verification(Sequence& sequence, int32_t end);

  uint64_t cascade_steps() const { return cascade_steps_; }

 private:
  ipc::Rows& rows() { return plan_.step().runs.front().rows; }
  const ipc::Rows& rows() const { return plan_.step().runs.front().rows; }
  // Bytes of a row's token in a step; each may begin a block of each group.
  size_t token_bytes() const {
    return ipc::kStepTokenBytes + pools_.num_paged() * ipc::kBlockUpdateBytes;
  }
  int32_t room_for_more(const Sequence& sequence, int32_t computed, int32_t wanted) const;
  void add_setup(Sequence& sequence);
  // The entries of block tables for its first `tokens` tokens that the device lacks.
  void send_blocks(Sequence& sequence, int32_t tokens) {
    step_bytes_ += pools_.send(sequence, tokens, plan_.step()) * ipc::kBlockUpdateBytes;
  }
  int32_t history_of(int32_t cached) const;
  void add_history(const Sequence& sequence, ipc::SlotSetup& setup);

  const SchedulerOptions& options_;
  BlockPools& pools_;
  const Cascade cascade_;
  ChunkLimits limits_;
  StepId next_step_ = 1;
  StepPlan plan_;
  PlannedStep building_;
  TimePoint now_{};
  bool prebuilt_rows_ = false;  // requests begin whose KV came from another group
  size_t step_bytes_ = 0;       // of the payload
  int64_t scores_left_ = 0;     // entries of prompt_logprobs that the step may still have
  int32_t history_left_ = 0;    // tokens that its slots may still begin with
  int32_t num_decodes_ = 0;     // tokens before its chunks
  int32_t long_tokens_ = 0;     // of its chunks, of long prompts
  std::vector<std::vector<PlannedRow>> spare_rows_;
  uint64_t cascade_steps_ = 0;
};

// Inline: most rows of a server are these.
inline void StepBuilder::add_decode(Sequence& sequence) {
  const int32_t from = sequence.num_scheduled, to = from + 1;
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(1);
  rows.computed.push_back(from);
  rows.flags.push_back(ipc::kSamples);
  rows.token_ids.push_back(kTokenOnDevice);
  sequence.num_scheduled = to;
  sequence.planned = next_step_;
  send_blocks(sequence, to + options_.draft_reach());
  step_bytes_ += ipc::kStepRowBytes + ipc::kStepTokenBytes;
  ++sequence.pending;
  ++sequence.pending_most;
  ++sequence.in_flight;
  building_.rows.push_back({&sequence, to, 1, 1, 0, from});
}

}  // namespace refrain
