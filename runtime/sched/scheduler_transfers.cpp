// The part of Scheduler for requests between groups: those that leave with their first token, and
// those whose KV comes from another group (PREBUILT).

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

// It has its token and no row in flight. What its blocks hold is all but that token.
void Scheduler::hand_over(Sequence& sequence) {
  REFRAIN_CHECK(sequence.in_flight == 0 && sequence.pending == 0,
                "request {} is handed over with {} rows in flight", sequence.id,
                sequence.in_flight);
  const int32_t tokens = sequence.num_computed;
  std::erase(running_, &sequence);
  sequence.source = leases_.grant(pools_.detach(sequence), tokens, arrivals_.lease_end(now_));
  sequence.hands_over = false;
  handed_over_.push_back(take_out(sequence));
}

// A sequence that no queue has: it gives up what is its own here and leaves.
std::unique_ptr<Sequence> Scheduler::take_out(Sequence& sequence) {
  std::erase(receiving_, &sequence);
  release(sequence);
  sequence.state = SequenceState::kWaiting;
  const auto found = sequences_.find(sequence.id);
  std::unique_ptr<Sequence> taken = std::move(found->second);
  sequences_.erase(found);
  return taken;
}

// Gives a waiting sequence its slot and blocks for all its tokens, and has those filled that the
// cache does not hold. False: it does not fit now.
bool Scheduler::receive(Sequence& sequence) {
  const bool others_run = !running_.empty() || !receiving_.empty();
  if (!pools_.may_enter(others_run)) return false;
  find_prefix(sequence);
  const int32_t computed = sequence.source->tokens();
  const int32_t length = sequence.length() + draft_reach();
  if (!pools_.enter(sequence, computed, length, length, others_run)) return false;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence.params.adapter != 0) {
    sequence.adapter_place = adapters_.enter(sequence.params.adapter, placements_);
  }
  sequence.state = SequenceState::kReceiving;
  --sourced_;
  receiving_.push_back(&sequence);
  if (sequence.blocks_published * options_.block_size >= computed) {
    arrive(sequence);
  } else if (!arrivals_.begin(sequence, now_)) {
    fail_transfer({&sequence, false, "the group that has its blocks lacks some of them"});
  }
  return true;
}

// Its blocks hold all but its last token, which its first row brings: no prompt is computed.
void Scheduler::arrive(Sequence& sequence) {
  std::erase(receiving_, &sequence);
  sequence.num_computed = sequence.num_scheduled = sequence.source->tokens();
  sequence.source.reset();
  sequence.state = SequenceState::kRunning;
  sequence.prebuilt = true;
  pools_.advance(sequence);
  run(sequence);
}

void Scheduler::fail_transfer(const KvArrivals::Ended& ended) {
  Sequence& sequence = *ended.sequence;
  log::warn("the KV blocks of request {} did not come: {}", sequence.id, ended.why);
  ++sequence.failed_transfers;
  sequence.source.reset();
  failed_.push_back(take_out(sequence));
}

void Scheduler::pulled(int32_t rank, const ipc::Pulled& report, TimePoint now) {
  const auto ended = arrivals_.report(rank, report, now);
  if (!ended) return;
  ended->good ? arrive(*ended->sequence) : fail_transfer(*ended);
}

void Scheduler::check_transfers(TimePoint now) {
  stats_.leases_expired += leases_.expire(now);
  for (const Sequence* sequence : waiting_)
    if (sequence->source) sequence->source->renew(arrivals_.lease_end(now));
  for (const KvArrivals::Ended& ended : arrivals_.give_up_overdue(now)) fail_transfer(ended);
}

}  // namespace refrain
