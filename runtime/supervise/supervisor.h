#pragma once
// Keeps the processes of one machine alive: for `refrain serve` one coordinator, the front that has
// its clients, and the groups of workers (SupervisedGroups). A coordinator that is lost while a
// group is ready is started alone, and adopts the workers and the front's requests.
// Ends all of them. Lives on one executor.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/supervise/group_report.h"
#include "runtime/supervise/incident_book.h"
#include "runtime/supervise/restart_policy.h"
#include "runtime/supervise/supervised_groups.h"
#include "runtime/supervise/supervised_processes.h"
#include "runtime/supervise/supervisor_options.h"

namespace refrain {

class IoContext;

class Supervisor final : private SupervisedGroups::Owner {
 public:
  // `on_end(exit code)` is called once, when everything this supervisor started is gone.
  Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
             std::function<void(int)> on_end);

  void start() { respawn(); }
  // Ends everything: whoever has the clients, front or coordinator, drains first, then the others
  // go. Again: at once. A third time: by SIGKILL, as one that has not ended 5 s after its time is
  //
  void stop();
  // What the coordinator says through its pipe, or the engine of this process.
  void on_report(const GroupReport& report);

 private:
  enum class Phase : uint8_t { kServing, kDraining, kEnding };

  void spawn_coordinator();
  void on_exit(SupervisedProcess process);
  void on_coordinator_exit(pid_t pid, const ChildProcess::End& end);
  void on_front_exit(pid_t pid, const ChildProcess::End& end);
  void spawn_front();
  bool has_front() const { return !options_.front.empty(); }
  void check_finished();
  void signal_server(int number);  // whoever has the clients
  void kill_server_after(Duration limit);

  pid_t spawn(const std::vector<std::string>& argv, int group, int rank,
              const std::vector<int>& pass) override;
  void respawn() override;
  void finish(int code) override;
  bool draining() const override { return phase_ == Phase::kDraining; }
  bool ending() const override { return phase_ == Phase::kEnding; }
  pid_t engine_pid() const override { return engine_pid_; }
  void later(Duration delay, std::function<void()> task) override;

  IoContext& io_;
  std::shared_ptr<Executor> executor_;
  SupervisorOptions options_;
  std::function<void(int)> on_end_;
  RestartPolicy restarts_;            // of the coordinator
  std::optional<Incident> incident_;  // of the coordinator
  RestartPolicy front_restarts_;
  SupervisedProcesses processes_;
  pid_t engine_pid_;
  IncidentBook incidents_;
  SupervisedGroups groups_;
  Phase phase_ = Phase::kServing;
  int exit_code_ = kExitOk;
  bool ended_ = false;
  int stops_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace refrain
