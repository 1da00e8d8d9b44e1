#include "runtime/launch/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

constexpr Duration kKillAfter = std::chrono::seconds(5);  // a worker that ignores SIGTERM

}  // namespace

std::vector<std::vector<std::string>> worker_commands(const EngineConfig& config,
                                                      const std::string& address) {
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < config.worker.tensor_parallel_size; ++rank) {
    std::vector<std::string> argv = {sibling_program("worker"),
                                     "--model",
                                     config.model,
                                     "--rank",
                                     std::to_string(rank),
                                     "--tensor-parallel-size",
                                     std::to_string(config.worker.tensor_parallel_size),
                                     "--coordinator",
                                     address,
                                     "--device",
                                     config.device,
                                     "--host-threads",
                                     std::to_string(config.host_threads),
                                     "--log-level",
                                     config.log_level,
                                     "--die-with-parent"};
    const std::vector<std::string> debug = debug_arguments(config.debug);
    argv.insert(argv.end(), debug.begin(), debug.end());
    if (!config.host_isa.empty()) argv.insert(argv.end(), {"--host-isa", config.host_isa});
    if (!config.fault.empty()) argv.insert(argv.end(), {"--fault", config.fault});
    commands.push_back(std::move(argv));
  }
  return commands;
}

Supervisor::Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
                       std::function<void(int)> on_end)
    : io_(io),
      executor_(std::move(executor)),
      options_(std::move(options)),
      on_end_(std::move(on_end)),
      engine_pid_(::getpid()) {}

void Supervisor::start() {
  if (!options_.coordinator.empty()) spawn(options_.coordinator, "coordinator", true);
  start_workers();
}

void Supervisor::start_workers() {
  for (size_t rank = 0; rank < options_.workers.size() && !exit_code_; ++rank) {
    spawn(options_.workers[rank], fmt::format("worker {}", rank), false);
  }
}

void Supervisor::spawn(const std::vector<std::string>& argv, std::string name, bool coordinator) {
  auto child = ChildProcess::spawn(argv);
  if (!child) {
    log::error("{}", child.error().message);
    finish(kExitInternal);
    return;
  }
  const pid_t pid = child->pid();
  if (coordinator) engine_pid_ = pid;
  processes_.push_back({std::move(*child), std::move(name), coordinator});
  std::weak_ptr<bool> alive = alive_;
  const bool watched = io_.on_process_exit(pid, executor_, [this, alive, pid] {
    if (alive.lock()) on_exit(pid);
  });
  if (!watched)
    executor_->post([this, alive, pid] {
      if (alive.lock()) on_exit(pid);
    });
}

void Supervisor::on_exit(pid_t pid) {
  const auto at = std::find_if(processes_.begin(), processes_.end(),
                               [pid](const Process& p) { return p.child.pid() == pid; });
  if (at == processes_.end()) return;
  Process process = std::move(*at);
  processes_.erase(at);
  const int code = process.child.reap();
  if (process.coordinator && options_.coordinator_gone) options_.coordinator_gone();
  if (exit_code_) {
    if (process.coordinator && *exit_code_ == kExitOk && code != kExitOk) exit_code_ = code;
    if (process.coordinator) finish(*exit_code_);
  } else if (process.coordinator) {
    on_coordinator_exit(code);
  } else if (!restarting_) {
    on_worker_exit(process.name, code);
  }
  check_finished();
}

void Supervisor::on_coordinator_exit(int code) {
  if (code == kExitOk || code == kExitConfig) return finish(code);
  log::error("the coordinator ended with status {}", code);
  schedule_restart("coordinator");
}

void Supervisor::on_worker_exit(const std::string& name, int code) {
  if (code == kExitConfig) return finish(code);
  log::error("{} ended with status {}; its group starts again", name, code);
  schedule_restart(name);
}

void Supervisor::schedule_restart(const std::string& why) {
  const TimePoint now = executor_->clock().now();
  while (!restarts_.empty() && now - restarts_.front() > kRestartWindow) restarts_.pop_front();
  if (static_cast<int>(restarts_.size()) >= options_.max_restarts) {
    log::error("{} ended {} times in a minute; giving up (exit {})", why, options_.max_restarts + 1,
               kExitTryAgain);
    return finish(kExitTryAgain);
  }
  restarts_.push_back(now);
  restarting_ = true;
  kill_all(SIGKILL, false);
}

void Supervisor::kill_all(int number, bool coordinator_too) {
  for (const Process& process : processes_) {
    if (!process.coordinator || coordinator_too) process.child.signal(number);
  }
}

void Supervisor::stop() {
  if (++stops_ > 1) {
    kill_all(stops_ == 2 ? SIGTERM : SIGKILL, true);
    return;
  }
  if (!exit_code_) exit_code_ = kExitOk;
  const bool has_coordinator = std::any_of(processes_.begin(), processes_.end(),
                                           [](const Process& p) { return p.coordinator; });
  for (const Process& process : processes_) {
    if (process.coordinator || !has_coordinator) process.child.signal(SIGTERM);
  }
  if (!has_coordinator) finish(*exit_code_);
  check_finished();
}

void Supervisor::finish(int code) {
  if (!exit_code_) exit_code_ = code;
  kill_all(SIGTERM, true);
  std::weak_ptr<bool> alive = alive_;
  executor_->post_after(kKillAfter, [this, alive] {
    if (alive.lock()) kill_all(SIGKILL, true);
  });
  check_finished();
}

// Ranks that were killed while they joined a group could not unlink its shared memory.
void Supervisor::remove_segments() const {
  const std::string begin = fmt::format("refrain-refrain-{}-", engine_pid_);
  std::error_code error;  // without /dev/shm there is nothing to remove
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && std::filesystem::remove(entry.path(), error)) {
      log::debug("removed shared memory {} of a group that ended while it started", name);
    }
  }
}

void Supervisor::check_finished() {
  const bool workers_gone = std::all_of(processes_.begin(), processes_.end(),
                                        [](const Process& p) { return p.coordinator; });
  if (workers_gone) remove_segments();
  if (restarting_ && workers_gone && !exit_code_) {
    restarting_ = false;
    const auto backoff =
        std::chrono::milliseconds(100) * (1 << std::min<size_t>(restarts_.size() - 1, 3));
    std::weak_ptr<bool> alive = alive_;
    executor_->post_after(backoff, [this, alive] {
      if (!alive.lock() || exit_code_) return;
      const bool coordinator_runs = !processes_.empty();
      if (!options_.coordinator.empty() && !coordinator_runs) {
        spawn(options_.coordinator, "coordinator", true);
      }
      start_workers();
    });
  }
  if (exit_code_ && processes_.empty() && !ended_) {
    ended_ = true;
    on_end_(*exit_code_);
  }
}

}  // namespace refrain
