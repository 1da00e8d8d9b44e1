#pragma once
// The tensor-parallel workers as one unit: hello, start, ready, steps, and the fence when a
// rank is lost: the others are shut down and a new set of workers is awaited under a new epoch. It
// joins membership, door, inbox, fan-out, health and the ranks' processes. Lives on the engine's
// executor, on which its endpoint calls as well; handlers are called there, never from inside a
// call of the engine's.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "ipc/transport/endpoint.h"
#include "runtime/actor/executor.h"
#include "runtime/engine/group_door.h"
#include "runtime/engine/group_fan_out.h"
#include "runtime/engine/group_health.h"
#include "runtime/engine/group_inbox.h"
#include "runtime/engine/group_membership.h"
#include "runtime/engine/rank_processes.h"
#include "runtime/engine/worker_group_options.h"

namespace refrain {

class WorkerGroup : public std::enable_shared_from_this<WorkerGroup> {
 public:
  WorkerGroup(WorkerGroupOptions options, std::unique_ptr<ipc::Endpoint> endpoint,
              std::shared_ptr<Executor> executor, ProcessWatch watch, ProcessKill kill,
              WorkerGroupHandlers handlers);

  void start();
  void send_step(const ipc::Message& step);  // only while ready
  void tell(const ipc::Message& message);    // all ranks; while ready
  // For good: the input is at fault ("start"), or nobody starts it again ("restarts").
  void give_up(std::string detector, std::string reason);
  // Its workers go, for a reason that is no fault of theirs; others are awaited.
  void restart(std::string reason);
  // The same, and they come again with weights and blocks, to capture for another role (CG-23).
  // While ready.
  void change_role(ipc::GroupRole role, std::string reason);
  // With its replicas, as its workers said (CG-17). While ready.
  bool steps_together() const { return members_.steps_together(); }
  // Of the next workers. While there are none.
  void set_role(ipc::GroupRole role, const ipc::WorkerConfig& worker);
  // A rank's answer is wrong ("answers"), or it takes no messages ("connection"): the group is
  // lost.
  void fence(std::string detector, int32_t rank, std::string reason);
  // A canary got no finite logit. The group is lost, and the next one checks its weights; of
  // that one the same is the end for good.
  void distrust();
  void trust() { distrusted_ = false; }  // a canary was answered
  bool distrusted() const { return distrusted_; }
  void stop(const std::string& reason);

  GroupState state() const { return state_; }
  const std::string& detail() const { return detail_; }
  Epoch epoch() const { return members_.epoch(); }
  std::vector<ipc::Ready> ready() const { return members_.all_ready(); }
  void fill(GroupStats& stats) const;  // with state, epoch and what ready ranks said

 private:
  static constexpr Duration kLastWords = std::chrono::milliseconds(20);  // after a process's end

  void on_frame(const ipc::PeerId& from, std::span<const std::byte> frame);
  void on_hello(const ipc::PeerId& from, const ipc::Hello& hello);
  void watch(const ipc::Hello& hello);
  void on_message(int32_t rank, ipc::Message message);
  void on_loaded(int32_t rank, const ipc::Loaded& loaded);
  void on_ready(int32_t rank, ipc::Ready ready);
  void on_step_result(int32_t rank, ipc::StepResult result);
  void on_failed(int32_t rank, const ipc::Failed& failed);
  void on_process_end(int32_t rank);

  bool active() const;  // waiting, starting or ready
  void lose_as_planned(std::optional<ipc::GroupRole> role, std::string reason);
  void lose(GroupFault fault);
  void lose(std::string detector, std::vector<int32_t> ranks, std::string reason,
            bool for_good = false);
  void send_away(const GroupFault& fault);
  void dismiss();
  void set_state(GroupState state, std::string detail);
  void arm_timer(Duration delay);
  void on_timer();
  TimePoint now() const { return executor_->clock().now(); }

  WorkerGroupOptions options_;
  std::shared_ptr<Executor> executor_;
  WorkerGroupHandlers handlers_;

  GroupState state_ = GroupState::kWaiting;
  std::string detail_;
  uint64_t restarts_ = 0;
  bool distrusted_ = false;
  bool new_role_ = false;  // its ranks capture for it
  GroupMembership members_;
  GroupFanOut fan_out_;
  GroupInbox inbox_;
  GroupDoor door_;
  GroupHealth health_;
  std::shared_ptr<RankProcesses> processes_;
  TimerId timer_ = 0;
};

}  // namespace refrain
