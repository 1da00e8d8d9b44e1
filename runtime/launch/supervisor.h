#pragma once
// Keeps the processes of one machine alive: per rank one worker and, for `refrain serve`, one
// coordinator. The worker group is the unit of failure: when one worker is lost, the rest are
// killed and all are started again. A coordinator that is lost while its group is ready is started
// alone, and adopts the workers. RestartPolicy says how often. Lives on one executor.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/config/engine_config.h"
#include "runtime/launch/child_process.h"
#include "runtime/launch/group_report.h"
#include "runtime/launch/incident.h"
#include "runtime/launch/restart_policy.h"

namespace refrain {

class IoContext;

struct SupervisorOptions {
  std::vector<std::vector<std::string>> workers;  // argv of each rank
  std::vector<std::string> coordinator;           // argv; empty: the engine is in this process
  int max_restarts = 3;                           // within RestartPolicy::kWindow
  std::string incident_dir;                       // of incident records; empty: only the log
  Duration drain_timeout{};                       // of the coordinator
  uint64_t seed = 0;                              // of the jitter in the pauses between restarts
};

// argv of every rank's worker for this configuration and coordinator address.
std::vector<std::vector<std::string>> worker_commands(const EngineConfig& config,
                                                      const std::string& address);

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
  struct Process {
    ChildProcess child;
    int rank = -1;  // -1: the coordinator
    bool coordinator() const { return rank < 0; }
  };

  void spawn_coordinator();
  void spawn_workers();
  void spawn(std::vector<std::string> argv, int rank, const std::vector<int>& pass);
  void respawn();
  void on_exit(pid_t pid);
  void on_coordinator_exit(pid_t pid, const ChildProcess::End& end);
  void on_worker_exit(int rank, pid_t pid, const ChildProcess::End& end, bool asked_why = false);
  void ask_why(int rank, pid_t pid, const ChildProcess::End& end);
  void open_incident(std::string process, std::string ended, int rank);
  void close_incident();
  void record(const Incident& incident);
  std::vector<RankFlight> flights_now() const;
  void lose_reported(const GroupLoss& loss);
  void lose_group(const std::string& who, int code);
  void group_gone();
  std::optional<Duration> pause_before(const std::string& who, int code);
  void finish(int code);
  void check_finished();
  void kill_workers(int number) const;
  void signal_coordinator(int number) const;
  void kill_coordinator_after(Duration limit);
  bool coordinator_runs() const;
  bool workers_run() const;
  void later(Duration delay, std::function<void()> task);

  IoContext& io_;
  std::shared_ptr<Executor> executor_;
  SupervisorOptions options_;
  std::function<void(int)> on_end_;
  RestartPolicy restarts_;
  SupervisorBoard board_;
  std::vector<UniqueFd> flight_fds_;  // per rank; empty where there is no memory for them
  std::vector<ipc::FlightRing> flights_;
  std::vector<RankFlight> last_run_;  // pid and end of each rank's process
  std::optional<GroupLoss> early_;    // reported before the process has ended
  std::optional<Incident> incident_;  // being gathered until things start again
  std::vector<Process> processes_;
  pid_t engine_pid_;  // of the process whose groups the workers join
  Phase phase_ = Phase::kServing;
  int exit_code_ = kExitOk;
  bool given_up_ = false;               // the coordinator said that no restart will help
  bool ready_ = false;                  // the group serves
  bool was_ready_ = false;              // these workers have served
  bool isolating_ = false;              // a loss of workers that serve finds a request at fault
  std::optional<Duration> regrouping_;  // the group is being killed, to start again after a pause
  bool ended_ = false;
  int stops_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace refrain
