#include "worker/transfer/puller.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/log.h"
#include "worker/transfer/read_plan.h"

namespace refrain::worker {

Puller::Puller(KvMemory own, int rank, std::vector<std::unique_ptr<Transport>> transports,
               Report report)
    : own_(std::move(own)),
      rank_(rank),
      transports_(std::move(transports)),
      report_(std::move(report)) {}

ipc::KvExport Puller::own() const {
  ipc::KvExport own;
  own.states = own_.states;
  for (const auto& transport : transports_) transport->describe(own);
  return own;
}

void Puller::forget(int32_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  for (const Peer& peer : found->second.ranks)
    for (const auto& transport : transports_) transport->forget(peer.id);
  groups_.erase(found);
}

void Puller::take(const ipc::KvPeers& peers) {
  forget(peers.group);
  if (peers.ranks.empty()) return;
  Peers& group = groups_[peers.group];
  group.told = peers;
  for (size_t rank = 0; rank < peers.ranks.size(); ++rank)
    group.ranks.push_back(import(peers.group, rank, peers.ranks[rank]));
}

// Every transport learns of the peer, as it may be asked by it.
Puller::Peer Puller::import(int32_t group, size_t rank, const ipc::KvExport& other) {
  Peer peer{next_peer_++, nullptr};
  std::string why;
  for (const auto& transport : transports_) {
    const Status reached = transport->import(peer.id, other);
    if (!reached) why += fmt::format("; {}: {}", transport->name(), reached.error().message);
    if (reached && peer.reads == nullptr) peer.reads = transport.get();
  }
  if (peer.reads == nullptr) {
    log::error("rank {} of group {} cannot be reached{}", rank, group, why);
  } else {
    log::info("blocks of rank {} of group {} come over {}{}", rank, group, peer.reads->name(), why);
  }
  return peer;
}

void Puller::take(const ipc::PullBlocks& order) {
  Pull& pull = pulls_[order.id];
  if (const Status begun = begin(order, pull); !begun) {
    pull.error = begun.error().message;
    cancel_reads(pull);
  }
  if (!pull.reads.empty()) return;
  report_({order.id, 0, true, pull.error});
  pulls_.erase(order.id);
}

Status Puller::begin(const ipc::PullBlocks& order, Pull& pull) {
  const auto found = groups_.find(order.group);
  if (found == groups_.end() || found->second.told.epoch != order.epoch)
    return fail(ErrorCode::kUnavailable, "group {} of epoch {} is not there", order.group,
                order.epoch);
  const Peers& peers = found->second;
  REFRAIN_ASSIGN_OR_RETURN(auto reads, plan_reads(own_, rank_, peers.told.ranks, order.blocks));
  for (size_t rank = 0; rank < reads.size(); ++rank) {
    if (reads[rank].empty()) continue;
    const Peer& peer = peers.ranks[rank];
    if (peer.reads == nullptr)
      return fail(ErrorCode::kUnavailable, "rank {} of group {} cannot be reached", rank,
                  order.group);
    const ReadId id = next_read_++;
    pull.reads.insert(id);
    reads_.emplace(id, Reading{order.id, peer.reads});
    peer.reads->post(id, peer.id, std::move(reads[rank]));
  }
  return {};
}

void Puller::cancel_reads(const Pull& pull) {
  for (const ReadId id : pull.reads) reads_.at(id).by->cancel(id);
}

void Puller::take(const ipc::CancelPull& cancel) {
  const auto found = pulls_.find(cancel.id);
  if (found == pulls_.end()) return;  // it has ended, and that is told
  if (found->second.error.empty()) found->second.error = kCancelled;
  cancel_reads(found->second);
}

void Puller::poll(std::chrono::milliseconds wait) {
  for (const auto& transport : transports_) {
    const bool last = transport == transports_.back();
    bool busy = false;
    for (const Transport::Progress& progress :
         transport->poll(last ? wait : std::chrono::milliseconds(0))) {
      busy = true;
      note(progress);
    }
    if (busy) wait = std::chrono::milliseconds(0);
  }
}

// The pull has ended when all its reads have; the first error is told, and ends the others.
void Puller::note(const Transport::Progress& progress) {
  const auto reading = reads_.find(progress.id);
  if (reading == reads_.end()) return;
  const TransferId id = reading->second.pull;
  Pull& pull = pulls_.at(id);
  pull.bytes += progress.bytes;
  if (progress.ended) {
    pull.reads.erase(progress.id);
    reads_.erase(reading);
    if (!progress.error.empty() && pull.error.empty()) {
      pull.error = progress.error;
      cancel_reads(pull);
    }
    if (pull.reads.empty()) {
      report_({id, pull.bytes, true, pull.error});
      pulls_.erase(id);
      return;
    }
  }
  const TimePoint now = steady_clock().now();
  if (pull.bytes == pull.told || now - pull.told_at < kTellEvery) return;
  pull.told = pull.bytes;
  pull.told_at = now;
  report_({id, pull.bytes, false, ""});
}

}  // namespace refrain::worker
