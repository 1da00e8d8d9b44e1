#pragma once
// A rank's part in moving KV blocks between groups: knows the ranks of other groups, turns an order
// of the coordinator into reads of each of them, and tells how far it is. Blocks that the other
// group's step still writes are read layer by layer, as its flags let them. Which transport reads
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
#include "worker/transfer/layer_watch.h"
#include "worker/transfer/transport.h"

namespace refrain::worker {

class Puller {
 public:
  using Report = std::function<void(ipc::Pulled)>;
  static constexpr std::chrono::milliseconds kLookEvery{1};  // at flags
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
  // Of a rank whose step writes what is pulled.
  struct Watch {
    Peer peer;
    LayerWatch layers;
    ReadId look = 0;           // under way; 0: none
    int64_t bytes_before = 0;  // of the pull, when that look began
    TimePoint look_at{};
  };
  struct Pull {
    int32_t group = 0;
    std::set<ReadId> reads;  // that have not ended
    std::vector<std::unique_ptr<Watch>> watches;
    int64_t bytes = 0, early = 0, told = 0;
    std::string error;
    TimePoint told_at{};

    bool waits() const;
  };
  struct Reading {
    TransferId pull = 0;
    Transport* by = nullptr;
    Watch* look = nullptr;  // null: it reads blocks
  };
  void forget(int32_t group);
  Peer import(int32_t group, size_t rank, const ipc::KvExport& other);
  Status begin(const ipc::PullBlocks& order, Pull& pull);
  void post(TransferId id, Pull& pull, const Peer& peer, std::vector<Read> reads, Watch* look);
  bool look(TimePoint now);
  void take_look(TransferId id, Pull& pull, Watch& watch);
  void fail(Pull& pull, const std::string& why);
  bool end_if_done(TransferId id, Pull& pull);
  void note(const Transport::Progress& progress);

  const KvMemory own_;
  const int rank_;
  std::vector<std::unique_ptr<Transport>> transports_;
  Report report_;
  std::map<int32_t, Peers> groups_;
  std::map<TransferId, Pull> pulls_;
  std::map<ReadId, Reading> reads_;
  PeerId next_peer_ = 0;
  ReadId next_read_ = 1;
};

}  // namespace refrain::worker
