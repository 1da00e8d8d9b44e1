#pragma once
// Keeps the groups of workers alive for a supervisor. A group is the unit of failure: when
// one worker is lost, the rest of its group are killed and all of it is started again, while other
// groups serve on. One that was lost too often (RestartPolicy) is left as it is, as long as there
// is another. Lives on the supervisor's executor.

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/supervise/incident_book.h"
#include "runtime/supervise/supervised_group.h"
#include "runtime/supervise/supervised_processes.h"
#include "runtime/supervise/supervisor_options.h"

namespace refrain {

class SupervisedGroups {
 public:
  // What it asks of its supervisor.
  class Owner {
   public:
    virtual pid_t spawn(const std::vector<std::string>& argv, int group, int rank,
                        const std::vector<int>& pass) = 0;  // 0: it did not start, and all ends
    virtual void respawn() = 0;                             // whatever does not run
    virtual void finish(int code) = 0;                      // all ends
    virtual bool draining() const = 0;
    virtual bool ending() const = 0;
    virtual pid_t engine_pid() const = 0;  // of the process whose groups the workers join
    virtual void later(Duration delay, std::function<void()> task) = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it.
  SupervisedGroups(const SupervisorOptions& options, const Executor& executor,
                   SupervisedProcesses& processes, IncidentBook& incidents, Owner& owner);

  // Those that do not run and are to.
  void spawn_missing();
  SupervisedGroup* find(int32_t group);  // null: there is none
  // A worker ended while nothing else does.
  void on_exit(SupervisedGroup& group, int rank, pid_t pid, const ChildProcess::End& end);
  // What a coordinator says of groups, but for audits.
  void on_report(const GroupReport& report);

  // Of a lost coordinator. What groups know of it goes into the incident.
  void enter_into(Incident& incident);
  bool none_goes_on() const;   // all were given up or have failed
  bool all_come_back() const;  // or stay away, without a coordinator
  // Those that are ready keep what they have for the next one, others start again. Whether some do.
  bool keep_or_regroup(Duration pause);
  bool any_kept() const;  // still
  void close_incidents();

 private:
  void spawn_workers(SupervisedGroup& group);
  void on_worker_exit(SupervisedGroup& group, int rank, pid_t pid, const ChildProcess::End& end,
                      bool asked_why = false);
  void ask_why(SupervisedGroup& group, int rank, pid_t pid, const ChildProcess::End& end);
  void on_loss_report(SupervisedGroup& group, const GroupLoss& loss);
  void restart_as_asked(SupervisedGroup& group, const GroupLoss& loss);
  void lose_reported(SupervisedGroup& group, const GroupLoss& loss);
  void lose_group(SupervisedGroup& group, const std::string& who, int code);
  void fail_group(SupervisedGroup& group, int code);
  void regroup(SupervisedGroup& group, Duration pause);
  void group_gone(SupervisedGroup& group);
  void start_again(SupervisedGroup& group, Duration patience);
  void open_incident(SupervisedGroup& group, std::string process, std::string ended, int rank);
  void forget_restarts(int count);
  void remove_segments(const SupervisedGroup& group) const;

  const SupervisorOptions& options_;
  const Executor& executor_;
  SupervisedProcesses& processes_;
  IncidentBook& incidents_;
  Owner& owner_;
  std::deque<SupervisedGroup> groups_;  // never moved: tasks refer to them
  std::deque<int> lost_groups_;         // as their restarts were counted
};

}  // namespace refrain
