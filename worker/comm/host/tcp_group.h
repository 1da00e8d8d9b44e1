#pragma once
// A group whose ranks share no memory: posts and data travel in frames, one from each rank to each
// other in every exchange. A frame is checked before anything of it is used; CURVE authenticates
// every byte. A connection that ends is not made again: its rank is gone.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/transport/rank_sockets.h"
#include "worker/comm/host/host_group.h"

namespace refrain::worker {

class TcpGroup final : public HostGroup {
 public:
  // The largest frame of a group.
  static size_t max_frame_bytes();
  // `ranks`: where all are; `sockets` listens at this one's address.
  static Result<std::unique_ptr<HostGroup>> join(const GroupOptions& options,
                                                 std::unique_ptr<ipc::RankSockets> sockets,
                                                 const std::vector<ipc::RankAddress>& ranks,
                                                 int threads);
  ~TcpGroup() override;

  bool shares_memory() const override { return false; }
  size_t bytes() const override { return memory_.size(); }
  std::string find_missing() override;

 private:
  // What is known of a peer.
  struct Peer {
    std::string address;
    uint32_t sequence = 0;  // of its last post
    Post posts[2];          // by parity of the sequence
    bool left = false;
    std::string gave_up;  // why
  };

  TcpGroup(const GroupOptions& options, std::unique_ptr<ipc::RankSockets> sockets,
           const std::vector<ipc::RankAddress>& ranks);
  Status meet_first();
  void exchange(const Post& post, Deadline deadline) override;
  const Post& post_of(int peer) const override;
  void tell(const std::string& reason) override;

  void send_post(const Post& post);
  void tell_all(uint32_t kind, std::span<const std::byte> body);
  void take(const ipc::RankSockets::Frame& frame);
  void take_post(Peer& peer, const ipc::RankSockets::Frame& frame);
  std::optional<int> waited_for() const;  // a rank that has not come to the next meeting
  std::string told() const;               // by a rank that gave up
  std::string gone() const;               // a rank that ended without a word
  std::string name(int peer) const;
  void hear_last_words();

  std::unique_ptr<ipc::RankSockets> sockets_;
  std::vector<std::byte> memory_;  // of the slots
  std::vector<Peer> peers_;
};

}  // namespace refrain::worker
