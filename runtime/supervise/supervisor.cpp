#include "runtime/supervise/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/supervise/process_end.h"
#include "runtime/supervise/run_directory.h"

namespace refrain {
namespace {

constexpr Duration kKillAfter = std::chrono::seconds(5);  // a process that ignores SIGTERM

}  // namespace

Supervisor::Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
                       std::function<void(int)> on_end)
    : io_(io),
      executor_(std::move(executor)),
      options_(std::move(options)),
      on_end_(std::move(on_end)),
      restarts_(options_.max_restarts, options_.seed),
      front_restarts_(options_.max_restarts, options_.seed),
      processes_(io_, executor_,
                 [this](SupervisedProcess process) { on_exit(std::move(process)); }),
      engine_pid_(::getpid()),
      incidents_(options_.incident_dir),
      groups_(options_, *executor_, processes_, incidents_, *this) {}

void Supervisor::respawn() {
  incidents_.close(incident_);
  if (has_front() && !processes_.front_runs()) spawn_front();
  if (!options_.coordinator.empty() && !processes_.coordinator_runs()) spawn_coordinator();
  groups_.spawn_missing();
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
  const int board = incidents_.board().fd();
  if (board >= 0) argv.insert(argv.end(), {"--board-fd", std::to_string(board)});
  engine_pid_ = spawn(argv, SupervisedProcess::kCoordinator, -1, {writer.get(), board});
}

void Supervisor::spawn_front() {
  std::vector<std::string> argv = options_.front;
  const int board = incidents_.board().fd();
  if (board >= 0) argv.insert(argv.end(), {"--board-fd", std::to_string(board)});
  spawn(argv, SupervisedProcess::kFront, -1, {board});
}

pid_t Supervisor::spawn(const std::vector<std::string>& argv, int group, int rank,
                        const std::vector<int>& pass) {
  const auto pid = processes_.spawn(argv, group, rank, pass);
  if (pid) return *pid;
  log::error("{}", pid.error().message);
  finish(exit_code(pid.error().code));
  return 0;
}

void Supervisor::on_exit(SupervisedProcess process) {
  const pid_t pid = process.child.pid();
  const ChildProcess::End end = process.child.reap();
  SupervisedGroup* group = groups_.find(process.group);
  if (group != nullptr && !group->regrouping)
    group->last_run[static_cast<size_t>(process.rank)].ended = describe(end);
  if (phase_ == Phase::kEnding) {
    if (process.group == SupervisedProcess::kCoordinator) processes_.signal_workers(SIGTERM);
    const bool as_told = group == nullptr || group->failed || ended_as_told(end);
    if (exit_code_ == kExitOk && !as_told) exit_code_ = exit_code_of(end);
  } else if (process.group == SupervisedProcess::kFront) {
    on_front_exit(pid, end);
  } else if (group == nullptr) {
    on_coordinator_exit(pid, end);
  } else {
    groups_.on_exit(*group, process.rank, pid, end);
  }
  check_finished();
}

void Supervisor::on_coordinator_exit(pid_t pid, const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  // A front that drains needs the next one for its requests.
  if (phase_ == Phase::kDraining && !has_front())
    return finish(ended_as_told(end) ? kExitOk : code);
  if (code == kExitOk || code == kExitConfig || groups_.none_goes_on()) return finish(code);
  log::error("the coordinator ended by {}", describe(end));
  if (groups_.all_come_back()) return;  // it comes back with its workers
  incidents_.close(incident_);
  incident_.emplace();
  incident_->process = fmt::format("coordinator (pid {})", pid);
  incident_->ended = describe(end);
  groups_.enter_into(*incident_);
  const auto pause = restarts_.next(executor_->clock().now());
  if (!pause) {
    const int last = give_up_code(end);
    log::error(
        "the coordinator was lost and {} restarts in a minute did not help; giving up (exit {})",
        options_.max_restarts, last);
    return finish(last);
  }
  if (!groups_.keep_or_regroup(*pause)) return;
  log::info("its workers keep weights and graphs for the next one");
  later(*pause, [this] {
    incidents_.close(incident_);
    // Where workers were lost meanwhile, it comes back with them.
    if (groups_.any_kept() && phase_ != Phase::kEnding && !processes_.coordinator_runs())
      spawn_coordinator();
  });
}

// Its clients are lost, and the coordinator ends their requests; the next one listens again.
void Supervisor::on_front_exit(pid_t pid, const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  if (phase_ == Phase::kDraining) return finish(ended_as_told(end) ? kExitOk : code);
  if (code == kExitOk || code == kExitConfig) return finish(code);
  log::error("the front ended by {}", describe(end));
  Incident incident;
  incident.process = fmt::format("front (pid {})", pid);
  incident.ended = describe(end);
  incidents_.record(incident);
  const auto pause = front_restarts_.next(executor_->clock().now());
  if (!pause) {
    const int last = give_up_code(end);
    log::error("the front was lost and {} restarts in a minute did not help; giving up (exit {})",
               options_.max_restarts, last);
    return finish(last);
  }
  later(*pause, [this] {
    if (phase_ == Phase::kServing && !processes_.front_runs()) spawn_front();
  });
}

void Supervisor::on_report(const GroupReport& report) {
  SupervisedGroup* audited = report.audit ? groups_.find(report.audit->group) : nullptr;
  if (audited != nullptr) {
    Incident incident = audited->make_incident("a step", "", -1);
    incident.audit = report.audit;
    incidents_.record(incident);
  }
  if (phase_ != Phase::kEnding) groups_.on_report(report);
}

void Supervisor::stop() {
  ++stops_;
  if (stops_ > 2) {
    processes_.signal_workers(SIGKILL);
    processes_.signal_front(SIGKILL);
    return processes_.signal_coordinator(SIGKILL);
  }
  if (phase_ == Phase::kEnding) return;
  phase_ = Phase::kDraining;
  if (has_front() ? !processes_.front_runs() : !processes_.coordinator_runs())
    return finish(kExitOk);
  // Two of the same kind could arrive as one.
  signal_server(stops_ == 1 ? SIGTERM : SIGINT);
  kill_server_after(stops_ == 1 ? options_.drain_timeout + kKillAfter : kKillAfter);
}

void Supervisor::signal_server(int number) {
  has_front() ? processes_.signal_front(number) : processes_.signal_coordinator(number);
}

void Supervisor::kill_server_after(Duration limit) {
  later(limit, [this] {
    if (has_front() ? processes_.front_runs() : processes_.coordinator_runs())
      log::error("the {} does not end: killed", has_front() ? "front" : "coordinator");
    signal_server(SIGKILL);
  });
}

void Supervisor::finish(int code) {
  if (phase_ != Phase::kEnding) exit_code_ = code;
  phase_ = Phase::kEnding;
  groups_.close_incidents();
  incidents_.close(incident_);
  // Workers end behind the coordinator: libzmq 4.3.4 aborts in a process that closes its end of a
  // connection while the other one does (stream_engine_base.cpp:331).
  if (!processes_.coordinator_runs()) processes_.signal_workers(SIGTERM);
  processes_.signal_front(SIGTERM);
  processes_.signal_front(SIGINT);
  // Its requests cannot be finished any more: each ends with an error, now.
  processes_.signal_coordinator(SIGTERM);
  processes_.signal_coordinator(SIGINT);
  later(kKillAfter, [this] {
    processes_.signal_workers(SIGKILL);
    processes_.signal_front(SIGKILL);
    processes_.signal_coordinator(SIGKILL);
  });
  check_finished();
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
