#include "runtime/sched/request_transfers.h"

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {

RequestTransfers::RequestTransfers(const SchedulerOptions& options, SequenceQueues& queues,
                                   SequenceResources& resources)
    : options_(options),
      queues_(queues),
      resources_(resources),
      leases_(resources.pools()),
      arrivals_(resources.pools(), options.num_ranks, options.transfer_timeout) {}

void RequestTransfers::hand_over(Sequence& sequence, TimePoint now) {
  REFRAIN_CHECK(sequence.in_flight == 0 && sequence.pending == 0,
                "request {} is handed over with {} rows in flight", sequence.id,
                sequence.in_flight);
  const int32_t tokens = sequence.num_computed;
  sequence.source =
      leases_.grant(resources_.pools().detach(sequence), tokens, arrivals_.lease_end(now));
  sequence.hands_over = false;
  handed_over_.push_back(queues_.take_out(sequence));
}

bool RequestTransfers::take_room(Sequence& sequence) {
  const bool others_run = !queues_.running().empty() || !queues_.receiving().empty();
  if (!resources_.pools().may_enter(others_run)) return false;
  resources_.find_prefix(sequence);
  const int32_t length = sequence.length() + options_.draft_reach();
  return resources_.take(sequence, sequence.source->tokens(), length, length, others_run);
}

void RequestTransfers::fill(Sequence& sequence, TimePoint now) {
  if (sequence.blocks_published * options_.block_size >= sequence.source->tokens()) {
    arrive(sequence);
  } else if (!arrivals_.begin(sequence, now)) {
    fail({&sequence, false, "the group that has its blocks lacks some of them"});
  }
}

// Its blocks hold all but its last token, which its first row brings: no prompt is computed.
void RequestTransfers::arrive(Sequence& sequence) {
  sequence.num_computed = sequence.num_scheduled = sequence.source->tokens();
  sequence.source.reset();
  sequence.prebuilt = true;
  resources_.pools().advance(sequence);
  queues_.run_received(sequence);
}

void RequestTransfers::fail(const KvArrivals::Ended& ended) {
  Sequence& sequence = *ended.sequence;
  log::warn("the KV blocks of request {} did not come: {}", sequence.id, ended.why);
  ++sequence.failed_transfers;
  sequence.source.reset();
  failed_.push_back(queues_.take_out(sequence));
}

void RequestTransfers::pulled(int32_t rank, const ipc::Pulled& report, TimePoint now) {
  const auto ended = arrivals_.report(rank, report, now);
  if (!ended) return;
  ended->good ? arrive(*ended->sequence) : fail(*ended);
}

void RequestTransfers::check(TimePoint now) {
  leases_expired_ += leases_.expire(now);
  for (const Sequence* sequence : queues_.waiting())
    if (sequence->source) sequence->source->renew(arrivals_.lease_end(now));
  for (const KvArrivals::Ended& ended : arrivals_.give_up_overdue(now)) fail(ended);
}

void RequestTransfers::cancel(Sequence& sequence) {
  arrivals_.abandon(sequence);
  queues_.take_out(sequence);
}

std::vector<std::unique_ptr<Sequence>> RequestTransfers::release_all() {
  for (Sequence* sequence : queues_.receiving()) arrivals_.abandon(*sequence);
  std::vector<std::unique_ptr<Sequence>> left = take_handed_over();
  for (auto& sequence : take_failed()) left.push_back(std::move(sequence));
  return left;
}

}  // namespace refrain
