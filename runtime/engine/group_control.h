#pragma once
// What an operator asks of single groups while the others serve (POST /drain, /resume, /restart):
// which of them take no requests for it, when the workers of one go, and who is told when it is
// done. Owned by the engine, on its executor.

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/actor/run_later.h"
#include "runtime/engine/engine.h"

namespace refrain {

class GroupControl {
 public:
  struct Hooks {
    std::function<bool(int32_t)> ready;   // its workers serve
    std::function<bool(int32_t)> failed;  // for good
    std::function<bool(int32_t)> idle;    // no request is in it, and none reads its blocks
    // Its workers go, or stay for another role; what it has goes on elsewhere.
    std::function<void(int32_t, std::optional<ipc::GroupRole>)> restart;
    std::function<void(int32_t)> changed;  // it takes requests that took none, or the other way
  };
  // `limit`: how long a group may take to finish what it has. A drain then ends with kDeadline, and
  // a restart goes on. `executor` outlives it.
  GroupControl(int32_t num_groups, Duration limit, Executor& executor, Hooks hooks);
  void connect(RunLater run_later) { run_later_ = std::move(run_later); }  // once

  // `done` is called once: it is as was asked, or why not. One thing at a time is asked of a group.
  void take(const GroupOrder& order, GroupOrderDone done);
  // It takes no requests.
  bool holds(int32_t group) const { return of(group).state != State::kOpen; }
  // What its next workers are for, where a restart says so; once.
  std::optional<ipc::GroupRole> take_role(int32_t group);
  bool waits() const;          // a group is told to end what it has
  void look();                 // requests have ended, or groups have
  void came(int32_t group);    // its new workers are ready
  void end(const Error& why);  // whoever waits is told

 private:
  enum class State : uint8_t { kOpen, kDraining, kDrained, kRestarting };
  struct Group {
    State state = State::kOpen;
    bool restarts = false;  // when it is drained
    std::optional<ipc::GroupRole> role;
    GroupOrderDone done;  // who waits
    TimerId limit = 0;
  };
  const Group& of(int32_t group) const { return groups_[static_cast<size_t>(group)]; }
  Group& of(int32_t group) { return groups_[static_cast<size_t>(group)]; }
  void set(int32_t index, State state);
  void answer(Group& group, const Status& status);
  void drained(int32_t index);
  void overdue(int32_t index);

  const Duration limit_;
  Executor& executor_;
  const Hooks hooks_;
  RunLater run_later_;
  std::vector<Group> groups_;
};

}  // namespace refrain
