#pragma once
// Tells the ranks of prefill and decode groups where the others' blocks can be read: each pair of
// complete groups of the two roles, anew when one of them comes back, and that a group is gone.
// Owned by the engine, on its executor.

#include <functional>
#include <optional>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/config/groups.h"

namespace refrain {

class KvExchange {
 public:
  // `tell` sends to all ranks of a group; it is called for groups alone whose ranks all have
  // spoken.
  using Tell = std::function<void(int32_t group, const ipc::Message& message)>;
  KvExchange(const std::vector<Group>& groups, Tell tell);

  void exported(int32_t group, Epoch epoch, int32_t rank, ipc::KvExport own);
  void lost(int32_t group);
  void set_role(int32_t group, ipc::GroupRole role);  // while it is lost
  // Whether the second one's ranks know where those of the first have their blocks.
  bool joined(int32_t from, int32_t to) const { return complete(from) && complete(to); }

 private:
  struct Side {
    ipc::GroupRole role;
    Epoch epoch = 0;
    std::vector<std::optional<ipc::KvExport>> ranks;
  };
  const Side& side(int32_t group) const { return sides_[static_cast<size_t>(group)]; }
  bool complete(int32_t group) const;
  ipc::KvPeers peers(int32_t group) const;
  std::vector<int32_t> partners(int32_t group) const;  // that are complete

  std::vector<Side> sides_;  // by group
  Tell tell_;
};

}  // namespace refrain
