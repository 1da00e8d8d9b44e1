#pragma once
// A rank's part in moving KV blocks between groups: knows the ranks of other groups, turns an order
// of the coordinator into reads of each of them, and tells how far it is. Which transport reads
// from a peer is settled when the peer is told of: the first that reaches it. One thread.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "worker/kv/kv_memory.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

class Puller {
 public:
  using Report = std::function<void(ipc::Pulled)>;
  // `transports` in the order in which they are tried. The last one may wait in poll().
  Puller(KvMemory own, int rank, std::vector<std::unique_ptr<Transport>> transports, Report report);

  ipc::KvExport own() const;
  void take(const ipc::KvPeers& peers);
  void take(const ipc::PullBlocks& order);
  void take(const ipc::CancelPull& cancel);
  void poll(std::chrono::milliseconds wait);

 private:
  static constexpr Duration kTellEvery = std::chrono::milliseconds(100);  // of progress

  struct Peer {
    PeerId id = 0;
    Transport* reads = nullptr;
  };
  struct Peers {
    ipc::KvPeers told;
    std::vector<Peer> ranks;
  };
  struct Pull {
    std::set<ReadId> reads;  // that have not ended
    int64_t bytes = 0, told = 0;
    std::string error;
    TimePoint told_at{};
  };
  void forget(int32_t group);
  Peer import(int32_t group, size_t rank, const ipc::KvExport& other);
  Status begin(const ipc::PullBlocks& order, Pull& pull);
  void cancel_reads(const Pull& pull);
  void note(const Transport::Progress& progress);

  const KvMemory own_;
  const int rank_;
  std::vector<std::unique_ptr<Transport>> transports_;
  Report report_;
  std::map<int32_t, Peers> groups_;
  std::map<TransferId, Pull> pulls_;
  struct Reading {
    TransferId pull = 0;
    Transport* by = nullptr;
  };
  std::map<ReadId, Reading> reads_;
  PeerId next_peer_ = 0;
  ReadId next_read_ = 1;
};

}  // namespace refrain::worker
