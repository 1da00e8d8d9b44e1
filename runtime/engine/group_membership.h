#pragma once
// Who is in a group and under which epoch: one record a rank, who may join, whether the ranks fit
// together, and when all of them have loaded or are ready. It sends nothing and watches
// no time. Owned by the worker group, on the engine's executor.

#include <deque>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/messages.h"
#include "ipc/transport/endpoint.h"
#include "runtime/base/clock.h"
#include "runtime/engine/handshake.h"

namespace refrain {

// Why a group is lost, as GroupLoss tells of it.
struct GroupFault {
  std::string detector;
  std::vector<int32_t> ranks;  // at fault
  std::string reason;
  bool for_good = false;
  bool planned = false;                     // an operator asked for it
  std::optional<ipc::GroupRole> role = {};  // planned: its workers stay, for this role
};

struct Member {
  Member(Epoch epoch, ipc::PeerId from, ipc::Hello said)
      : peer(std::move(from)), hello(std::move(said)), gate(epoch) {}
  ipc::PeerId peer;
  ipc::Hello hello;
  ipc::Welcome welcome;  // repeated until the rank has answered
  ipc::FrameGate gate;
  uint64_t sent = 0;   // frames, in this epoch
  bool spoke = false;  // since it was welcomed
  std::optional<ipc::RankAddress> address;
  std::optional<ipc::Loaded> loaded;
  std::optional<ipc::Ready> ready;
  std::deque<TimePoint> bad_frames;
};

class GroupMembership {
 public:
  // Gives the state groups with the blocks that all ranks have when the last one has spoken;
  // nothing before.
  using Agreed = tl::expected<std::optional<std::vector<ipc::StateGroup>>, GroupFault>;

  GroupMembership(GroupIdentity identity, Epoch first_epoch);

  void set_role(std::string role) { identity_.role = std::move(role); }  // of those that come
  int32_t num_ranks() const { return static_cast<int32_t>(members_.size()); }
  Epoch epoch() const { return epoch_; }
  bool empty() const;
  Member* find(int32_t rank) { return has(rank) ? &*members_[static_cast<size_t>(rank)] : nullptr; }
  const Member* find(int32_t rank) const {
    return has(rank) ? &*members_[static_cast<size_t>(rank)] : nullptr;
  }
  int32_t rank_of(const ipc::PeerId& peer) const;                 // -1: none
  std::string name_of(int32_t rank) const;                        // "rank 1 (pid 4711 on host)"
  std::string names_of(const std::vector<int32_t>& ranks) const;  // joined by commas
  std::vector<int32_t> missing() const;

  std::optional<std::string> refusal_of(const ipc::Hello& hello) const;
  // ranks that kept the graphs of one group serve on together; they cannot do so with others.
  std::optional<std::string> mixed_with(const ipc::Hello& hello) const;
  // The clock that epochs begin from may have been set back since the coordinator before: the next
  // members come under an epoch above this one. Only while the group is empty.
  void outgrow(Epoch epoch);
  Member& join(const ipc::PeerId& from, const ipc::Hello& hello);
  void dismiss();  // all have left; the next ones come under a later epoch

  // A frame of this member could not be read. Whether it was one too many.
  bool bad_frame(int32_t rank, TimePoint now);
  // The smallest cache is the cache of all: ranks keep the same block tables.
  Agreed loaded(int32_t rank, const ipc::Loaded& loaded, const ipc::WorkerConfig& config);
  Agreed ready(int32_t rank, ipc::Ready ready);
  // Where all ranks are when the last one has said it; nothing before.
  tl::expected<std::optional<ipc::Peers>, GroupFault> meet(int32_t rank, ipc::RankAddress address);

  bool steps_together() const {
    return has(0) && find(0)->loaded && find(0)->loaded->steps_together;
  }
  bool adopted() const;  // every rank kept weights and graphs
  std::vector<int64_t> pids() const;
  std::vector<ipc::Ready> all_ready() const;
  std::vector<std::string> devices() const;  // as the workers name them

 private:
  static constexpr size_t kBadFrames = 3;  // of one peer within kBadFrameWindow
  static constexpr Duration kBadFrameWindow = std::chrono::seconds(10);

  bool has(int32_t rank) const { return members_[static_cast<size_t>(rank)].has_value(); }

  GroupIdentity identity_;
  Epoch epoch_;
  std::vector<std::optional<Member>> members_;
  std::vector<ipc::StateGroup> groups_;  // as InitCache says; empty: not all have loaded
};

}  // namespace refrain
