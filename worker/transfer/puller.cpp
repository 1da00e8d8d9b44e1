#include "worker/transfer/puller.h"

#include <fmt/format.h>

#include <algorithm>
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
  own.layer_flags = own_.flags != nullptr;
  for (const auto& transport : transports_) transport->describe(own);
  return own;
}

bool Puller::Pull::waits() const {
  return std::ranges::any_of(watches, [](const auto& watch) { return watch->layers.waits(); });
}

// Reads under way end by themselves; a pull may also wait for the step of that group.
void Puller::forget(int32_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  for (const Peer& peer : found->second.ranks)
    for (const auto& transport : transports_) transport->forget(peer.id);
  groups_.erase(found);
  for (auto at = pulls_.begin(); at != pulls_.end();) {
    auto& [id, pull] = *at++;
    if (pull.group != group || !pull.waits()) continue;
    fail(pull, kPeerGone);
    end_if_done(id, pull);
  }
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
  pull.group = order.group;
  if (const Status begun = begin(order, pull); !begun) fail(pull, begun.error().message);
  end_if_done(order.id, pull);
}

Status Puller::begin(const ipc::PullBlocks& order, Pull& pull) {
  const auto found = groups_.find(order.group);
  if (found == groups_.end() || found->second.told.epoch != order.epoch)
    return refrain::fail(ErrorCode::kUnavailable, "group {} of epoch {} is not there", order.group,
                         order.epoch);
  const Peers& peers = found->second;
  REFRAIN_ASSIGN_OR_RETURN(auto reads, plan_reads(own_, rank_, peers.told.ranks, order.blocks));
  for (size_t rank = 0; rank < reads.size(); ++rank) {
    if (reads[rank].empty()) continue;
    const Peer& peer = peers.ranks[rank];
    const ipc::KvExport& told = peers.told.ranks[rank];
    if (peer.reads == nullptr)
      return refrain::fail(ErrorCode::kUnavailable, "rank {} of group {} cannot be reached", rank,
                           order.group);
    if (order.step == 0) {
      post(order.id, pull, peer, std::move(reads[rank]), nullptr);
      continue;
    }
    if (!told.layer_flags)
      return refrain::fail(ErrorCode::kInvalidArgument,
                           "rank {} of group {} does not say what its steps have written", rank,
                           order.group);
    size_t regions = 0;
    for (const ipc::KvStates& states : told.states)
      regions += static_cast<size_t>(states.num_layers);
    LayerWatch layers(std::move(reads[rank]), regions, order.step);
    pull.watches.push_back(std::make_unique<Watch>(Watch{peer, std::move(layers)}));
  }
  return {};
}

void Puller::post(TransferId id, Pull& pull, const Peer& peer, std::vector<Read> reads,
                  Watch* look) {
  const ReadId read = next_read_++;
  pull.reads.insert(read);
  reads_.emplace(read, Reading{id, peer.reads, look});
  if (look != nullptr) look->look = read;
  peer.reads->post(read, peer.id, std::move(reads));
}

// Looks at flags where it is time. False: nothing waits for any.
bool Puller::look(TimePoint now) {
  bool waits = false;
  for (auto& [id, pull] : pulls_) {
    for (const auto& watch : pull.watches) {
      if (!watch->layers.waits()) continue;
      waits = true;
      if (watch->look != 0 || watch->look_at > now) continue;
      watch->bytes_before = pull.bytes;
      watch->look_at = now + kLookEvery;
      post(id, pull, watch->peer, {watch->layers.look()}, watch.get());
    }
  }
  return waits;
}

// What came before a look that finds the step under way came before its end.
void Puller::take_look(TransferId id, Pull& pull, Watch& watch) {
  if (std::vector<Read> passed = watch.layers.take_passed(); !passed.empty())
    post(id, pull, watch.peer, std::move(passed), nullptr);
  if (watch.layers.waits()) pull.early = std::max(pull.early, watch.bytes_before);
}

// The first error is told, and ends what is under way.
void Puller::fail(Pull& pull, const std::string& why) {
  if (!pull.error.empty()) return;
  pull.error = why;
  for (const auto& watch : pull.watches) watch->layers.give_up();
  for (const ReadId id : pull.reads) reads_.at(id).by->cancel(id);
}

bool Puller::end_if_done(TransferId id, Pull& pull) {
  if (!pull.reads.empty() || pull.waits()) return false;
  report_({id, pull.bytes, true, pull.error, pull.early});
  pulls_.erase(id);
  return true;
}

void Puller::take(const ipc::CancelPull& cancel) {
  const auto found = pulls_.find(cancel.id);
  if (found == pulls_.end()) return;  // it has ended, and that is told
  fail(found->second, kCancelled);
  end_if_done(cancel.id, found->second);
}

void Puller::poll(std::chrono::milliseconds wait) {
  if (look(steady_clock().now())) wait = std::min(wait, kLookEvery);
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

// The pull has ended when all its reads have, and no layer is waited for.
void Puller::note(const Transport::Progress& progress) {
  const auto found = reads_.find(progress.id);
  if (found == reads_.end()) return;
  const Reading reading = found->second;
  const TransferId id = reading.pull;
  Pull& pull = pulls_.at(id);
  if (reading.look == nullptr) pull.bytes += progress.bytes;
  if (progress.ended) {
    pull.reads.erase(progress.id);
    reads_.erase(found);
    if (reading.look != nullptr) reading.look->look = 0;
    if (!progress.error.empty()) {
      fail(pull, progress.error);
    } else if (reading.look != nullptr) {
      take_look(id, pull, *reading.look);
    }
    if (end_if_done(id, pull)) return;
  }
  const TimePoint now = steady_clock().now();
  if (pull.bytes == pull.told || now - pull.told_at < kTellEvery) return;
  pull.told = pull.bytes;
  pull.told_at = now;
  report_({id, pull.bytes, false, "", pull.early});
}

}  // namespace refrain::worker
