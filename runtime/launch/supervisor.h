#pragma once
// Keeps the processes of one machine alive: per rank one worker and, for `refrain serve`, one
// coordinator. The worker group is the unit of failure: when one worker ends, the rest are
// killed and all are started again, at most max_restarts times in kRestartWindow, with back-off.
// Lives on one executor.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/config/engine_config.h"
#include "runtime/launch/child_process.h"

namespace refrain {

class IoContext;

struct SupervisorOptions {
  std::vector<std::vector<std::string>> workers;  // argv of each rank
  std::vector<std::string> coordinator;           // argv; empty: none
  std::function<void()> coordinator_gone;         // after it ended, whichever way
  int max_restarts = 3;                           // within kRestartWindow
};

// argv of every rank's worker for this configuration and coordinator address.
std::vector<std::vector<std::string>> worker_commands(const EngineConfig& config,
                                                      const std::string& address);

class Supervisor {
 public:
  static constexpr Duration kRestartWindow = std::chrono::seconds(60);

  // `on_end(exit code)` is called once, when everything this supervisor started is gone.
  Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
             std::function<void(int)> on_end);

  void start();
  // Ends everything: the coordinator drains first, then the workers go. Called again: at once.
  void stop();

 private:
  struct Process {
    ChildProcess child;
    std::string name;
    bool coordinator = false;
  };

  void spawn(const std::vector<std::string>& argv, std::string name, bool coordinator);
  void on_exit(pid_t pid);
  void on_worker_exit(const std::string& name, int code);
  void on_coordinator_exit(int code);
  void kill_all(int number, bool coordinator_too);
  void start_workers();
  void schedule_restart(const std::string& why);
  void finish(int code);
  void check_finished();
  void remove_segments() const;

  IoContext& io_;
  std::shared_ptr<Executor> executor_;
  SupervisorOptions options_;
  std::function<void(int)> on_end_;
  std::vector<Process> processes_;
  pid_t engine_pid_;  // of the process whose groups the workers join
  std::deque<TimePoint> restarts_;
  std::optional<int> exit_code_;  // set: everything is ending
  bool restarting_ = false;       // workers are being killed to be started again
  bool ended_ = false;
  int stops_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace refrain
