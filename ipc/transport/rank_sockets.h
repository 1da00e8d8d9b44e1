#pragma once
// The tcp connections between ranks, of one group or of several: a rank listens on one address and
// has a connection to each peer, encrypted and authenticated by keys that live as long as the group
// (CURVE; they travel with the addresses). ZeroMQ's own thread moves the bytes; calls wait no
// longer than they are asked to. One thread at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/protocol/rank_address.h"
#include "ipc/transport/curve.h"
#include "ipc/transport/zap.h"
#include "runtime/base/result.h"

namespace refrain::ipc {

class RankSockets {
 public:
  // `address`: tcp://host:port of this machine, port * for any free one. Larger frames than
  // `max_bytes` end the connection that they come by. kUnavailable: somebody has the port, or
  // libzmq has no CURVE.
  // `peers_change`: for add() and remove(); who is not known may come again.
  static Result<std::unique_ptr<RankSockets>> listen(const std::string& address, size_t max_bytes,
                                                     bool peers_change = false);
  ~RankSockets();  // what was sent to ranks that are there has a moment to get out
  RankSockets(const RankSockets&) = delete;
  RankSockets& operator=(const RankSockets&) = delete;

  const std::string& address() const { return address_; }
  const std::string& key() const { return keys_.public_key; }
  // To every rank but this one; nobody else is let in.
  Status connect(const std::vector<RankAddress>& ranks, int own);
  // Instead of connect(): peers come and go. `peer` numbers a connection and is never used again.
  // A peer's frames are those of the last number that its key was given; removed, it has none.
  Status add(int peer, const RankAddress& address);
  void remove(int peer);
  // receive() returns when this descriptor is readable, too.
  void wake_by(int fd) { wake_fd_ = fd; }

  // Never waits: what a connection does not take yet is queued.
  Status send(int rank, std::span<const std::byte> head, std::span<const std::byte> body);

  struct Frame {
    int from;
    std::span<const std::byte> bytes;  // until the next call
  };
  // The next frame of any rank; nothing: none came in time, or a connection was lost.
  std::optional<Frame> receive(std::chrono::milliseconds timeout);
  // Whether the connection to a rank is there, or was and has ended: it is not made again.
  bool connected(int rank) const { return peer(rank).state == State::kConnected; }
  bool lost(int rank) const { return peer(rank).state == State::kLost; }

 private:
  enum class State : uint8_t { kConnecting, kConnected, kLost };
  struct Peer {
    void* socket = nullptr;   // to it; null: this rank
    void* monitor = nullptr;  // of that socket
    State state = State::kConnecting;
  };
  struct Message;  // of ZeroMQ

  RankSockets();
  Status bind(const std::string& address, size_t max_bytes);
  Status connect_to(int rank, const RankAddress& address);
  Status make_monitor(int rank);
  const Peer& peer(int rank) const { return peers_.at(static_cast<size_t>(rank)); }
  std::optional<Frame> take();
  bool note(Peer& peer);
  static void close(Peer& peer);

  void* context_ = nullptr;
  void* zap_ = nullptr;
  void* listener_ = nullptr;
  CurveKeyPair keys_;
  CurveUsers users_;                                 // the peers' keys, each marked with itself
  std::map<std::string, int, std::less<>> numbers_;  // of the peers, by key (Z85)
  std::string address_;
  std::vector<Peer> peers_;  // by rank
  bool changes_ = false;     // peers come and go
  int wake_fd_ = -1;
  std::unique_ptr<Message> message_;
};

}  // namespace refrain::ipc
