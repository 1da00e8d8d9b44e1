#pragma once
// The processes that a supervisor started and that have not ended: one coordinator and one front at
// most, and workers by group and rank. Whoever ends is handed over once. Lives on the supervisor's
// executor.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/base/child_process.h"
#include "runtime/base/result.h"

namespace refrain {

class IoContext;

struct SupervisedProcess {
  static constexpr int kCoordinator = -1, kFront = -2;
  ChildProcess child;
  int group = kCoordinator;  // or one of these two
  int rank = -1;
  bool worker() const { return group >= 0; }
};

class SupervisedProcesses {
 public:
  SupervisedProcesses(IoContext& io, std::shared_ptr<Executor> executor,
                      std::function<void(SupervisedProcess)> on_exit);

  // Its pid. `pass`: descriptors that it inherits.
  Result<pid_t> spawn(const std::vector<std::string>& argv, int group, int rank,
                      const std::vector<int>& pass);
  bool empty() const { return processes_.empty(); }
  bool coordinator_runs() const { return run(SupervisedProcess::kCoordinator); }
  bool front_runs() const { return run(SupervisedProcess::kFront); }
  bool run(int group) const;  // some of its ranks
  void signal_coordinator(int number) const {
    signal_group(SupervisedProcess::kCoordinator, number);
  }
  void signal_front(int number) const { signal_group(SupervisedProcess::kFront, number); }
  void signal_workers(int number) const;  // of all groups
  void signal_group(int group, int number) const;

 private:
  void ended(pid_t pid);

  IoContext& io_;
  std::shared_ptr<Executor> executor_;
  std::function<void(SupervisedProcess)> on_exit_;
  std::vector<SupervisedProcess> processes_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace refrain
