#pragma once
// The way into a group: whether a worker that says hello is refused, told again or let in, and what
// a member is told first. A hello can end the group that is there, when it shows that a
// rank of it is gone. Owned by the worker group, on the engine's executor.

#include <functional>
#include <utility>

#include "runtime/engine/group_fan_out.h"
#include "runtime/engine/group_membership.h"
#include "runtime/engine/rank_processes.h"
#include "runtime/engine/worker_group_options.h"

namespace refrain {

class GroupDoor {
 public:
  // The group is lost when this returns: its members have left.
  using OnFault = std::function<void(GroupFault)>;

  GroupDoor(const WorkerGroupOptions& options, GroupMembership& members, GroupFanOut& fan_out,
            OnFault on_fault)
      : options_(options), members_(members), fan_out_(fan_out), on_fault_(std::move(on_fault)) {}

  // Whether the worker may join now. Else it was answered.
  bool opens(const ipc::PeerId& from, const ipc::Hello& hello, const RankProcesses& processes);
  // Its Welcome is written; the first heartbeat sends it.
  void join(const ipc::PeerId& from, const ipc::Hello& hello, bool check_weights);

 private:
  const WorkerGroupOptions& options_;
  GroupMembership& members_;
  GroupFanOut& fan_out_;
  OnFault on_fault_;
};

}  // namespace refrain
