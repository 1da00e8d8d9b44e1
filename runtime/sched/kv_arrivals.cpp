#include "runtime/sched/kv_arrivals.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/sched/block_leases.h"

namespace refrain {

// Of each group, the blocks that a sequence just entered lacks of its first tokens, to be filled
// from those of its lease at the same place of the table; nothing: the lease lacks one of them.
std::optional<std::vector<ipc::KvBlocks>> KvArrivals::to_fill(const Sequence& sequence) const {
  const BlockLease& lease = *sequence.source;
  const std::vector<LeasedBlocks>& from = lease.blocks();
  if (from.size() != sequence.held.size() || !pools_.all_paged()) return std::nullopt;
  std::vector<ipc::KvBlocks> fill(from.size());
  for (size_t group = 0; group < from.size(); ++group) {
    const HeldBlocks& held = sequence.held[group];
    for (int32_t i = std::max(held.first, sequence.blocks_published);
         i < pools_.blocks_for(lease.tokens()); ++i) {
      const int32_t at = i - from[group].first;
      if (at < 0 || at >= std::ssize(from[group].blocks)) return std::nullopt;
      fill[group].from.push_back(from[group].blocks[static_cast<size_t>(at)]);
      fill[group].to.push_back(held.blocks[static_cast<size_t>(i)].id());
    }
  }
  return fill;
}

bool KvArrivals::begin(Sequence& sequence, TimePoint now, StepId step) {
  const BlockLease& lease = *sequence.source;
  auto blocks = to_fill(sequence);
  if (!blocks) return false;
  const auto ranks = static_cast<size_t>(num_ranks_);
  const TransferId id = next_++;
  Transfer transfer;
  transfer.sequence = &sequence;
  transfer.bytes.assign(ranks, 0);
  transfer.early.assign(ranks, 0);
  transfer.ended.assign(ranks, false);
  transfer.tokens = lease.tokens() - sequence.blocks_published * pools_.block_size();
  transfer.is_early = step != 0;
  transfer.begun = now;
  transfer.deadline = now + timeout_;
  transfers_.emplace(id, std::move(transfer));
  orders_.emplace_back(ipc::PullBlocks{id, lease.group, lease.epoch, std::move(*blocks), step});
  return true;
}

KvArrivals::Map::iterator KvArrivals::transfer_of(const Sequence& sequence) {
  const auto found = std::ranges::find_if(
      transfers_, [&](const auto& entry) { return entry.second.sequence == &sequence; });
  REFRAIN_CHECK(found != transfers_.end(), "request {} receives nothing", sequence.id);
  return found;
}

std::optional<KvArrivals::Ended> KvArrivals::join(const Sequence& stands_for, Sequence& sequence,
                                                  TimePoint now) {
  const auto found = transfer_of(stands_for);
  Transfer& transfer = found->second;
  transfer.sequence = &sequence;
  transfer.is_early = false;
  transfer.begun = now;
  transfer.deadline = now + timeout_;
  if (!drained(transfer)) return std::nullopt;
  const Ended ended = decide(*found, now);
  transfers_.erase(found);
  return ended;
}

// All ranks have all of it.
KvArrivals::Ended KvArrivals::decide(Map::value_type& entry, TimePoint now) {
  Transfer& transfer = entry.second;
  if (!transfer.sequence->source->commit()) {
    ++counts_.failed;
    return {give_up(entry), false, "its blocks were given to another request meanwhile"};
  }
  ++counts_.done;
  moved_.push_back({std::accumulate(transfer.bytes.begin(), transfer.bytes.end(), int64_t{0}),
                    transfer.tokens, seconds_between(transfer.begun, now)});
  return {transfer.sequence, true, ""};
}

bool KvArrivals::drained(const Transfer& transfer) {
  return std::ranges::all_of(transfer.ended, [](bool ended) { return ended; });
}

// Nobody waits for it any more. Its blocks are written until every rank has said that it ended.
Sequence* KvArrivals::give_up(Map::value_type& entry) {
  auto& [id, transfer] = entry;
  Sequence* sequence = std::exchange(transfer.sequence, nullptr);
  transfer.quarantine = pools_.detach(*sequence);
  if (!drained(transfer)) orders_.emplace_back(ipc::CancelPull{id});
  return sequence;
}

std::optional<KvArrivals::Ended> KvArrivals::report(int32_t rank, const ipc::Pulled& pulled,
                                                    TimePoint now) {
  const auto found = transfers_.find(pulled.id);
  if (found == transfers_.end()) return std::nullopt;
  Transfer& transfer = found->second;
  const auto at = static_cast<size_t>(rank);
  if (transfer.ended[at]) return std::nullopt;
  const int64_t more = pulled.bytes - transfer.bytes[at];
  if (more > 0) {
    counts_.bytes += static_cast<uint64_t>(more);
    transfer.bytes[at] = pulled.bytes;
    transfer.deadline = now + timeout_;
    if (transfer.sequence != nullptr) transfer.sequence->source->renew(lease_end(now));
  }
  if (pulled.early_bytes > transfer.early[at]) {
    counts_.early_bytes += static_cast<uint64_t>(pulled.early_bytes - transfer.early[at]);
    transfer.early[at] = pulled.early_bytes;
  }
  transfer.ended[at] = pulled.ended;
  const bool whole = drained(transfer);
  std::optional<Ended> ended;
  if (transfer.sequence != nullptr && pulled.ended && !pulled.error.empty()) {
    if (!transfer.is_early) ++counts_.failed;  // else it may be pulled anew
    ended = Ended{give_up(*found), false, pulled.error};
  } else if (transfer.sequence != nullptr && whole) {
    if (transfer.is_early) return std::nullopt;  // until its request comes
    ended = decide(*found, now);
  }
  if (whole) transfers_.erase(found);
  return ended;
}

std::vector<KvArrivals::Ended> KvArrivals::give_up_overdue(TimePoint now) {
  std::vector<Ended> ended;
  for (auto at = transfers_.begin(); at != transfers_.end();) {
    auto& entry = *at++;
    Transfer& transfer = entry.second;
    if (transfer.sequence == nullptr) continue;
    const bool gone = !transfer.sequence->source->held();
    if (!gone && (transfer.is_early || transfer.deadline > now)) continue;
    ended.push_back(
        {give_up(entry), false,
         gone ? "the group that has its blocks keeps them no longer" : "it made no progress"});
    if (!transfer.is_early) ++counts_.failed;
    if (drained(transfer)) transfers_.erase(entry.first);
  }
  return ended;
}

void KvArrivals::abandon(Sequence& sequence) {
  const auto found = transfer_of(sequence);
  give_up(*found);
  if (drained(found->second)) transfers_.erase(found);
}

TransferCounts KvArrivals::counts() const {
  TransferCounts counts = counts_;
  for (const auto& [id, transfer] : transfers_)
    ++(transfer.sequence != nullptr ? counts.running : counts.quarantined);
  return counts;
}

}  // namespace refrain
