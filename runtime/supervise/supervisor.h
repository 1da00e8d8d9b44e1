#pragma once
// Keeps the processes of one machine alive: per rank of every group one worker and, for `refrain
// serve`, one coordinator. A group is the unit of failure: when one worker is lost, the rest
// of its group are killed and all of it is started again, while other groups serve on. A
// coordinator that is lost while a group is ready is started alone, and adopts the workers.
// RestartPolicy says how often; a group that was lost too often is left as it is, as long as there
// is another. Lives on one executor.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/config/engine_config.h"
#include "runtime/supervise/group_report.h"
#include "runtime/supervise/incident.h"
#include "runtime/supervise/restart_policy.h"
#include "runtime/supervise/supervised_group.h"
#include "runtime/supervise/supervised_processes.h"

namespace refrain {

class IoContext;

struct SupervisorOptions {
  std::vector<std::vector<std::vector<std::string>>> workers;  // by group: argv of each rank
  std::vector<std::string> coordinator;             // argv; empty: the engine is in this process
  int max_restarts = 3;                             // within RestartPolicy::kWindow
  std::string incident_dir;                         // of incident records; empty: only the log
  Duration drain_timeout{};                         // of the coordinator
  std::function<void(int group)> on_given_up = {};  // it is not started again, and others are
  uint64_t seed = 0;                                // of the jitter in the pauses between restarts
};

class Supervisor {
 public:
  // `on_end(exit code)` is called once, when everything this supervisor started is gone.
  Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
             std::function<void(int)> on_end);

  void start();
  // Ends everything: the coordinator drains first, then the workers go. Again: at once. A third
  // time: by SIGKILL, as a coordinator that has not ended 5 s after its time is.
  void stop();
  // What the coordinator says through its pipe, or the engine of this process.
  void on_report(const GroupReport& report);

 private:
  enum class Phase : uint8_t { kServing, kDraining, kEnding };

  void spawn_coordinator();
  void spawn_workers(SupervisedGroup& group);
  pid_t spawn(const std::vector<std::string>& argv, int group, int rank,
              const std::vector<int>& pass);
  void respawn();
  void on_exit(SupervisedProcess process);
  void on_coordinator_exit(pid_t pid, const ChildProcess::End& end);
  void on_worker_exit(SupervisedGroup& group, int rank, pid_t pid, const ChildProcess::End& end,
                      bool asked_why = false);
  void ask_why(SupervisedGroup& group, int rank, pid_t pid, const ChildProcess::End& end);
  void on_loss_report(SupervisedGroup& group, const GroupLoss& loss);
  void lose_reported(SupervisedGroup& group, const GroupLoss& loss);
  void lose_group(SupervisedGroup& group, const std::string& who, int code);
  void fail_group(SupervisedGroup& group, int code);
  void regroup(SupervisedGroup& group, Duration pause);
  void group_gone(SupervisedGroup& group);
  void open_incident(SupervisedGroup& group, std::string process, std::string ended, int rank);
  void close_incident(std::optional<Incident>& incident);
  void record(const Incident& incident);
  void forget_restarts(int count);
  std::optional<Duration> pause_before(RestartPolicy& restarts, const std::string& who, int code);
  void finish(int code);
  void check_finished();
  void remove_segments(const SupervisedGroup& group) const;
  void kill_coordinator_after(Duration limit);
  SupervisedGroup* find(int32_t group);  // null: a report names one that there is not
  void later(Duration delay, std::function<void()> task);

  IoContext& io_;
  std::shared_ptr<Executor> executor_;
  SupervisorOptions options_;
  std::function<void(int)> on_end_;
  RestartPolicy restarts_;       // of the coordinator
  std::deque<int> lost_groups_;  // as their restarts were counted
  SupervisorBoard board_;
  std::deque<SupervisedGroup> groups_;  // never moved: tasks refer to them
  std::optional<Incident> incident_;    // of the coordinator
  SupervisedProcesses processes_;
  pid_t engine_pid_;  // of the process whose groups the workers join
  Phase phase_ = Phase::kServing;
  int exit_code_ = kExitOk;
  bool ended_ = false;
  int stops_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace refrain
