// The part of Scheduler that plans rows with drafts (CG-35, CG-39): the device proposes them and
// knows how many were right, so that a row is planned by the most that may have come before it.

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/sched/scheduler.h"

namespace refrain {
namespace {

// The second row of a request in flight begins where the first will have ended; what a third one
// would reach is more than its blocks and tables have room for.
constexpr int32_t kMostRowsAhead = 1;

}  // namespace

// With speculation every decode goes on from where the device is.
bool Scheduler::verifies(const Sequence& sequence) const {
  return options_.num_drafts > 0 && sequence.sampled;
}

// One length for all decodes of a step; without drafts where the step has no room for them or they
// do not pay.
int32_t Scheduler::query_len() {
  const int32_t with_drafts = 1 + options_.num_drafts;
  const auto rows = static_cast<int32_t>(running_.size());
  if (options_.num_drafts == 0 || rows > options_.max_num_batched_tokens / with_drafts) return 1;
  return draft_control_.wants_drafts(rows) ? with_drafts : 1;
}

void Scheduler::took(double seconds) {
  if (options_.num_drafts == 0 || last_.rows == 0) return;
  draft_control_.measured(last_.drafts, last_.rows, last_.tokens, seconds);
}

// Tokens that the sequence's next row may leave in the KV cache at most.
int32_t Scheduler::reach(const Sequence& sequence) const {
  return static_cast<int32_t>(sequence.tokens.size()) + sequence.pending_most - 1 + query_len_;
}

// False: the step has no room for it.
bool Scheduler::schedule_verification(Sequence& sequence) {
  if (sequence.pending > kMostRowsAhead) return true;
  const int32_t end = reach(sequence);
  const int32_t all = end + draft_reach();
  if (room_for(sequence, end - query_len_, query_len_) < query_len_) return false;
  if (!ensure_blocks(sequence, all)) return true;
  const bool drafts = query_len_ > 1 && sequence.takes_drafts();
  const bool known = sequence.pending == sequence.pending_most;
  int flags = ipc::kSamples | ipc::kVerifies;
  if (!drafts) flags |= ipc::kNoDrafts;
  ipc::Rows& rows = this->rows();
  rows.slot.push_back(sequence.slot);
  rows.num_tokens.push_back(query_len_);
  rows.computed.push_back(known ? sequence.num_scheduled : ipc::kComputedOnDevice);
  rows.flags.push_back(static_cast<uint8_t>(flags));
  rows.token_ids.insert(rows.token_ids.end(), static_cast<size_t>(query_len_), kTokenOnDevice);
  ++sequence.num_scheduled;
  send_blocks(sequence, all);
  step_bytes_ += ipc::kStepRowBytes + static_cast<size_t>(query_len_) * ipc::kStepTokenBytes;
  const int32_t most = drafts ? query_len_ : 1;
  ++sequence.pending;
  sequence.pending_most += most;
  ++sequence.in_flight;
  building_.rows.push_back({&sequence, ipc::kComputedOnDevice, 1, most});
  return true;
}

// How many of `cached` tokens a slot that is set up now is told.
int32_t Scheduler::history_of(int32_t cached) const {
  const auto room = static_cast<int32_t>(largest_part() / 4 / sizeof(TokenId));
  return options_.num_drafts == 0 ? 0 : std::min({cached, history_left_, room});
}

// What the prefix cache holds of it, or the end of that: the device looks drafts up in it.
void Scheduler::add_history(const Sequence& sequence, ipc::SlotSetup& setup) {
  const int32_t cached = sequence.num_scheduled, count = history_of(cached);
  history_left_ -= count;
  setup.history_begin = cached - count;
  setup.history.assign(sequence.tokens.begin() + setup.history_begin,
                       sequence.tokens.begin() + cached);
}

}  // namespace refrain
