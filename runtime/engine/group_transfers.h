#pragma once
// One group's side of requests between groups: what its scheduler says of those that leave, are
// promised or come goes to the engine and to the ranks, what ranks say of their pulls to the
// scheduler. Lives on the engine's executor.

#include <functional>
#include <memory>

#include "ipc/protocol/messages.h"
#include "runtime/actor/run_later.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

struct GroupServiceHandlers;

class GroupTransfers {
 public:
  struct Group {
    int32_t id = 0;
    std::function<Epoch()> epoch;
    std::function<void(const ipc::Message&)> tell;  // all ranks
    std::function<void()> changed;                  // its counts
  };
  // All outlive it; `scheduler` is null while the group is not ready, and then nothing happens.
  GroupTransfers(const std::unique_ptr<Scheduler>& scheduler, const GroupServiceHandlers& handlers,
                 Executor& executor, Duration timeout, Group group)
      : scheduler_(scheduler),
        handlers_(handlers),
        executor_(executor),
        timeout_(timeout),
        group_(std::move(group)) {}
  void connect(RunLater run_later) { run_later_ = std::move(run_later); }  // once

  // As Scheduler's.
  bool expect(PromisedRequest request);
  void forget(RequestId id);
  void pulled(int32_t rank, const ipc::Pulled& report);
  // What has ended since goes to the engine; a reader may have let go of blocks of this group.
  void tell_ended();
  // Gives up transfers that are overdue, or whose source is gone.
  void check();
  // What a step that is sent promises, and what of it did not come about.
  void tell_promised();
  // What has left goes to the engine, when the tokens of the step that it left with are told.
  void settle();
  void send_orders();

 private:
  const std::unique_ptr<Scheduler>& scheduler_;
  const GroupServiceHandlers& handlers_;
  Executor& executor_;
  const Duration timeout_;
  const Group group_;
  RunLater run_later_;
  bool watches_ = false;  // a timer runs
};

}  // namespace refrain
