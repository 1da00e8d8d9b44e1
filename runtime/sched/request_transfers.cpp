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
  const TimePoint until = arrivals_.lease_end(now);
  std::vector<HeldBlocks> held = resources_.pools().detach(sequence);
  if (sequence.promised) {
    BlockLeases::grant(*sequence.promised, std::move(held), until);
    sequence.source = std::move(sequence.promised);
  } else {
    sequence.source = leases_.grant(std::move(held), tokens, until);
  }
  sequence.hands_over = false;
  handed_over_.push_back(queues_.take_out(sequence));
}

void RequestTransfers::promise(const PlannedStep& step) {
  for (const PlannedRow& row : step.rows) {
    Sequence& sequence = *row.sequence;
    if (!sequence.hands_over || row.least == 0) continue;
    sequence.promised = leases_.promise(sequence.held, row.computed);
    auto stands_for = std::make_unique<Sequence>(sequence.id, sequence.tokens, sequence.params);
    stands_for->tokens.push_back(0);
    stands_for->source = sequence.promised;
    promised_.push_back({step.step, std::move(stands_for)});
  }
}

void RequestTransfers::withdraw(Sequence& sequence) {
  if (!sequence.promised) return;
  BlockLeases::withdraw(*sequence.promised);
  sequence.promised.reset();
  std::erase_if(promised_, [&](const auto& each) { return each.stands_for->id == sequence.id; });
  withdrawn_.push_back(sequence.id);
}

// Those that wait for room have it first.
bool RequestTransfers::expect(PromisedRequest request, TimePoint now) {
  Sequence& sequence = *request.stands_for;
  const bool others_run = !queues_.running().empty() || !queues_.receiving().empty();
  BlockPools& pools = resources_.pools();
  if (!queues_.waiting().empty() || !pools.all_paged() || !pools.may_enter(others_run))
    return false;
  resources_.find_prefix(sequence);
  const int32_t tokens = sequence.source->tokens();
  const int32_t length = sequence.length() + options_.draft_reach();
  if (!pools.enter(sequence, tokens, length, length, others_run)) return false;
  const bool all_cached = sequence.blocks_published * options_.block_size >= tokens;
  if (all_cached || !arrivals_.begin(sequence, now, request.step)) {
    pools.release(sequence);
    return false;
  }
  expected_[sequence.id] = std::move(request.stands_for);
  return true;
}

void RequestTransfers::forget(RequestId id) {
  const auto found = expected_.find(id);
  if (found == expected_.end()) return;
  arrivals_.abandon(*found->second);
  expected_.erase(found);
}

bool RequestTransfers::forget_those_without_a_place() {
  std::vector<RequestId> without;
  for (const auto& [id, sequence] : expected_)
    if (!resources_.has_place(*sequence)) without.push_back(id);
  for (const RequestId id : without) forget(id);
  return !without.empty();
}

void RequestTransfers::comes(const Sequence& sequence) {
  const auto found = expected_.find(sequence.id);
  if (found != expected_.end() && found->second->source != sequence.source) forget(sequence.id);
}

bool RequestTransfers::take_expected(Sequence& sequence) {
  const auto found = expected_.find(sequence.id);
  if (found == expected_.end()) return false;
  resources_.take(sequence, *found->second);
  return true;
}

bool RequestTransfers::take_room(Sequence& sequence) {
  if (take_expected(sequence)) return true;
  const bool others_run = !queues_.running().empty() || !queues_.receiving().empty();
  if (!resources_.pools().may_enter(others_run)) return false;
  resources_.find_prefix(sequence);
  const int32_t length = sequence.length() + options_.draft_reach();
  return resources_.take(sequence, sequence.source->tokens(), length, length, others_run);
}

void RequestTransfers::fill(Sequence& sequence, TimePoint now) {
  if (const auto found = expected_.find(sequence.id); found != expected_.end()) {
    const auto stood_for = std::move(found->second);
    expected_.erase(found);
    if (const auto ended = arrivals_.join(*stood_for, sequence, now)) decided(*ended);
  } else if (sequence.blocks_published * options_.block_size >= sequence.source->tokens()) {
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

void RequestTransfers::decided(const KvArrivals::Ended& ended) {
  const auto expected = expected_.find(ended.sequence->id);
  if (expected != expected_.end() && expected->second.get() == ended.sequence) {
    log::warn("the KV blocks of request {} did not come: {}", ended.sequence->id, ended.why);
    expected_.erase(expected);  // when it comes its blocks are pulled anew
  } else {
    ended.good ? arrive(*ended.sequence) : fail(ended);
  }
}

void RequestTransfers::pulled(int32_t rank, const ipc::Pulled& report, TimePoint now) {
  if (const auto ended = arrivals_.report(rank, report, now)) decided(*ended);
}

void RequestTransfers::check(TimePoint now) {
  leases_expired_ += leases_.expire(now);
  for (const Sequence* sequence : queues_.waiting())
    if (sequence->source) sequence->source->renew(arrivals_.lease_end(now));
  for (const KvArrivals::Ended& ended : arrivals_.give_up_overdue(now)) decided(ended);
}

void RequestTransfers::cancel(Sequence& sequence) {
  arrivals_.abandon(sequence);
  queues_.take_out(sequence);
}

std::vector<std::unique_ptr<Sequence>> RequestTransfers::release_all() {
  for (Sequence* sequence : queues_.receiving()) arrivals_.abandon(*sequence);
  while (!expected_.empty()) forget(expected_.begin()->first);
  promised_.clear();
  withdrawn_.clear();
  std::vector<std::unique_ptr<Sequence>> left = take_handed_over();
  for (auto& sequence : take_failed()) left.push_back(std::move(sequence));
  return left;
}

}  // namespace refrain
