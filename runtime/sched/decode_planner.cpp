#include "runtime/sched/decode_planner.h"

#include <algorithm>
#include <iterator>

namespace refrain {
namespace {

// The second row of a request in flight that verifies begins where the first will have ended; what
// a third one would reach is more than its blocks and tables have room for.
constexpr int32_t kMostRowsAhead = 1;

}  // namespace

int32_t DecodePlanner::query_len() {
  const int32_t with_drafts = 1 + options_.num_drafts;
  const auto rows = static_cast<int32_t>(queues_.running().size());
  if (options_.num_drafts == 0 || rows > options_.max_num_batched_tokens / with_drafts) return 1;
  return draft_control_.wants_drafts(rows) ? with_drafts : 1;
}

bool DecodePlanner::plan() {
  bool left = false;
  const auto& running = queues_.running();
  // Preemption takes from the end, so that an index stays good while it is below the size.
  for (size_t i = 0; i < running.size() && step_.budget_left() > 0; ++i) {
    Sequence& sequence = *running[i];
    left = left || sequence.chunk_left();
    if (sequence.chunk_left() || sequence.ends_in_flight(options_.max_model_len)) continue;
    // With speculation every decode goes on from where the device is.
    if (options_.num_drafts > 0 && sequence.sampled) {
      if (!add_verification(sequence)) return true;
      continue;
    }
    const int32_t computed = sequence.num_scheduled;
    if (step_.room_for(sequence, computed, 1) == 0) return true;
    if (!preemption_.ensure(sequence, computed + 1 + options_.draft_reach())) continue;
    if (sequence.sampled && sequence.setup_sent) {
      step_.add_decode(sequence);
    } else {
      step_.add_row(sequence, 1);
    }
  }
  return left;
}

// False: the step has no room for it.
bool DecodePlanner::add_verification(Sequence& sequence) {
  if (sequence.pending > kMostRowsAhead) return true;
  const int32_t query_len = step_.query_len();
  // Tokens that the row may leave in the KV cache at most.
  const int32_t end =
      static_cast<int32_t>(sequence.tokens.size()) + sequence.pending_most - 1 + query_len;
  if (step_.room_for(sequence, end - query_len, query_len) < query_len) return false;
  if (preemption_.ensure(sequence, end + options_.draft_reach()))
    step_.add_verification(sequence, end);
  return true;
}

bool DecodePlanner::any() const {
  return std::ranges::any_of(queues_.running(), [this](const Sequence* sequence) {
    return !sequence->chunk_left() && !sequence->ends_in_flight(options_.max_model_len) &&
           // Two rows that verify are as many as may be in flight.
           (options_.num_drafts == 0 || sequence->in_flight <= kMostRowsAhead);
  });
}

void DecodePlanner::answered(const PlannedStep& step, size_t tokens) {
  last_ = {};
  if (std::ranges::all_of(
          step.rows, [](const PlannedRow& row) { return row.computed == ipc::kComputedOnDevice; }))
    last_ = {static_cast<int32_t>(step.rows.size()), static_cast<int64_t>(tokens),
             step.query_len > 1};
}

void DecodePlanner::took(double seconds) {
  if (options_.num_drafts == 0 || last_.rows == 0) return;
  draft_control_.measured(last_.drafts, last_.rows, last_.tokens, seconds);
}

}  // namespace refrain
