#include "runtime/supervise/supervised_processes.h"

#include <algorithm>
#include <utility>

#include "runtime/actor/io_context.h"

namespace refrain {

SupervisedProcesses::SupervisedProcesses(IoContext& io, std::shared_ptr<Executor> executor,
                                         std::function<void(SupervisedProcess)> on_exit)
    : io_(io), executor_(std::move(executor)), on_exit_(std::move(on_exit)) {}

Result<pid_t> SupervisedProcesses::spawn(const std::vector<std::string>& argv, int group, int rank,
                                         const std::vector<int>& pass) {
  REFRAIN_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::spawn(argv, pass));
  const pid_t pid = child.pid();
  processes_.push_back({std::move(child), group, rank});
  const auto gone = [this, alive = std::weak_ptr<bool>(alive_), pid] {
    if (alive.lock()) ended(pid);
  };
  if (!io_.on_process_exit(pid, executor_, gone)) executor_->post(gone);
  return pid;
}

void SupervisedProcesses::ended(pid_t pid) {
  const auto at = std::ranges::find_if(
      processes_, [pid](const SupervisedProcess& process) { return process.child.pid() == pid; });
  if (at == processes_.end()) return;
  SupervisedProcess process = std::move(*at);
  processes_.erase(at);
  on_exit_(std::move(process));
}

bool SupervisedProcesses::run(int group) const {
  return std::ranges::any_of(
      processes_, [group](const SupervisedProcess& process) { return process.group == group; });
}

void SupervisedProcesses::signal_workers(int number) const {
  for (const SupervisedProcess& process : processes_)
    if (process.worker()) process.child.signal(number);
}

void SupervisedProcesses::signal_group(int group, int number) const {
  for (const SupervisedProcess& process : processes_)
    if (process.group == group) process.child.signal(number);
}

}  // namespace refrain
