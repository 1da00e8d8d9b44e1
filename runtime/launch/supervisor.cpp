#include "runtime/launch/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/launch/run_directory.h"

namespace refrain {
namespace {

constexpr Duration kKillAfter = std::chrono::seconds(5);  // a process that ignores SIGTERM

// Of a process: one of the four documented ones. A signal that it did not expect is a fault inside.
int exit_code_of(const ChildProcess::End& end) {
  if (end.signal != 0) return kExitInternal;
  const bool known = end.code == kExitOk || end.code == kExitConfig || end.code == kExitTryAgain;
  return known ? end.code : kExitInternal;
}

// Of this program, when what ended so did so too often: faults that the process found in itself
// come back, a signal (out of memory, an operator) may not.
int give_up_code(const ChildProcess::End& end) {
  return end.signal == 0 && end.code == kExitInternal ? kExitInternal : kExitTryAgain;
}

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
                                     "--parent",
                                     std::to_string(::getpid())};
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
      restarts_(options_.max_restarts, options_.seed),
      engine_pid_(::getpid()) {}

void Supervisor::start() { respawn(); }

// Whatever does not run.
void Supervisor::respawn() {
  if (!options_.coordinator.empty() && !coordinator_runs()) spawn_coordinator();
  if (!workers_run()) spawn_workers();
}

void Supervisor::spawn_coordinator() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    log::error("no pipe for the coordinator's reports: {}", std::strerror(errno));
    return finish(kExitTryAgain);
  }
  const UniqueFd writer(ends[1]);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);  // reports never make the engine wait
  std::weak_ptr<bool> alive = alive_;
  io_.on_lines(ends[0], executor_, [this, alive](const std::string& line) {
    if (!alive.lock()) return;
    const auto report = decode_report(line);
    if (!report) return log::error("{}", report.error().message);
    on_report(*report);
  });
  std::vector<std::string> argv = options_.coordinator;
  argv.insert(argv.end(), {"--report-fd", std::to_string(writer.get())});
  spawn(argv, "coordinator", true, {writer.get()});
}

void Supervisor::spawn_workers() {
  was_ready_ = false;
  for (size_t rank = 0; rank < options_.workers.size() && phase_ != Phase::kEnding; ++rank) {
    spawn(options_.workers[rank], fmt::format("worker {}", rank), false, {});
  }
}

void Supervisor::spawn(const std::vector<std::string>& argv, std::string name, bool coordinator,
                       const std::vector<int>& pass) {
  auto child = ChildProcess::spawn(argv, pass);
  if (!child) {
    log::error("{}", child.error().message);
    return finish(exit_code(child.error().code));
  }
  const pid_t pid = child->pid();
  if (coordinator) engine_pid_ = pid;
  processes_.push_back({std::move(*child), std::move(name), coordinator});
  std::weak_ptr<bool> alive = alive_;
  const auto gone = [this, alive, pid] {
    if (alive.lock()) on_exit(pid);
  };
  if (!io_.on_process_exit(pid, executor_, gone)) executor_->post(gone);
}

void Supervisor::on_exit(pid_t pid) {
  const auto at = std::ranges::find_if(
      processes_, [pid](const Process& process) { return process.child.pid() == pid; });
  if (at == processes_.end()) return;
  Process process = std::move(*at);
  processes_.erase(at);
  const ChildProcess::End end = process.child.reap();
  if (phase_ != Phase::kEnding) {
    if (process.coordinator) {
      on_coordinator_exit(end);
    } else if (!regrouping_) {
      on_worker_exit(process.name, end);
    }
  } else if (process.coordinator && exit_code_ == kExitOk) {
    exit_code_ = exit_code_of(end);
  }
  if (regrouping_ && !process.coordinator) group_gone();
  check_finished();
}

void Supervisor::on_coordinator_exit(const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  if (phase_ == Phase::kDraining || code == kExitOk || code == kExitConfig) return finish(code);
  log::error("the coordinator ended by {}", describe(end));
  if (regrouping_) return;  // it comes back with its workers
  if (!std::exchange(ready_, false)) return lose_group("coordinator", describe(end), code);
  const auto pause = pause_before("the coordinator", give_up_code(end));
  if (!pause) return;
  log::info("its workers keep weights and graphs for the next one");
  later(*pause, [this] {
    if (phase_ == Phase::kServing && !coordinator_runs()) spawn_coordinator();
  });
}

void Supervisor::on_worker_exit(const std::string& name, const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  // It leaves with a coordinator that has drained.
  if (phase_ == Phase::kDraining && code == kExitOk) return;
  // Of workers that have served, it is a refusal: they do not fit a new coordinator.
  if (code == kExitConfig && !was_ready_) return finish(code);
  lose_group(name, describe(end), give_up_code(end));
}

void Supervisor::on_report(const GroupReport& report) {
  if (phase_ == Phase::kEnding) return;
  if (report.ready) ready_ = was_ready_ = true;
  if (!report.lost || regrouping_) return;
  // Of a group that has been started again since: it comes too late.
  const bool present = std::ranges::any_of(report.lost->pids, [this](int64_t pid) {
    return std::ranges::any_of(processes_, [pid](const Process& process) {
      return !process.coordinator && process.child.pid() == pid;
    });
  });
  if (present) lose_group("the worker group", report.lost->reason, kExitTryAgain);
}

void Supervisor::lose_group(const std::string& who, const std::string& how, int code) {
  ready_ = false;
  log::error("{} is lost ({}); its group starts again", who, how);
  regrouping_ = pause_before(who, code);
  if (!regrouping_) return;
  kill_workers(SIGKILL);
  group_gone();
}

void Supervisor::group_gone() {
  if (workers_run()) return;
  remove_segments_of(engine_pid_);
  later(*regrouping_, [this] {
    if (phase_ == Phase::kEnding) return;
    regrouping_.reset();
    respawn();
  });
}

std::optional<Duration> Supervisor::pause_before(const std::string& who, int code) {
  const auto pause = restarts_.next(executor_->clock().now());
  if (!pause) {
    log::error("{} was lost and {} restarts in a minute did not help; giving up (exit {})", who,
               options_.max_restarts, code);
    finish(code);
  }
  return pause;
}

void Supervisor::stop() {
  ++stops_;
  if (stops_ > 2) {
    kill_workers(SIGKILL);
    return signal_coordinator(SIGKILL);
  }
  if (phase_ == Phase::kEnding) return;
  phase_ = Phase::kDraining;
  if (!coordinator_runs()) return finish(kExitOk);
  // Two of the same kind could arrive as one.
  signal_coordinator(stops_ == 1 ? SIGTERM : SIGINT);
}

void Supervisor::finish(int code) {
  if (phase_ != Phase::kEnding) exit_code_ = code;
  phase_ = Phase::kEnding;
  kill_workers(SIGTERM);
  // Its requests cannot be finished any more: each ends with an error, now.
  signal_coordinator(SIGTERM);
  signal_coordinator(SIGINT);
  later(kKillAfter, [this] {
    kill_workers(SIGKILL);
    signal_coordinator(SIGKILL);
  });
  check_finished();
}

void Supervisor::kill_workers(int number) const {
  for (const Process& process : processes_)
    if (!process.coordinator) process.child.signal(number);
}

void Supervisor::signal_coordinator(int number) const {
  for (const Process& process : processes_)
    if (process.coordinator) process.child.signal(number);
}

bool Supervisor::coordinator_runs() const {
  return std::ranges::any_of(processes_, [](const Process& p) { return p.coordinator; });
}

bool Supervisor::workers_run() const {
  return std::ranges::any_of(processes_, [](const Process& p) { return !p.coordinator; });
}

void Supervisor::later(Duration delay, std::function<void()> task) {
  executor_->post_after(delay, [alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (alive.lock()) task();
  });
}

void Supervisor::check_finished() {
  if (phase_ != Phase::kEnding || !processes_.empty() || ended_) return;
  remove_segments_of(engine_pid_);
  ended_ = true;
  on_end_(exit_code_);
}

}  // namespace refrain
