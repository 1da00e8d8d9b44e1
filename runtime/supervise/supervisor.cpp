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

constexpr Duration kKillAfter = std::chrono::seconds(5);          // a process that ignores SIGTERM
constexpr Duration kEndFollows = std::chrono::milliseconds(500);  // a failed worker's last words
constexpr size_t kKeptLosses = 64;                                // more than can be explained

}  // namespace

Supervisor::Supervisor(IoContext& io, std::shared_ptr<Executor> executor, SupervisorOptions options,
                       std::function<void(int)> on_end)
    : io_(io),
      executor_(std::move(executor)),
      options_(std::move(options)),
      on_end_(std::move(on_end)),
      restarts_(options_.max_restarts, options_.seed),
      processes_(io_, executor_,
                 [this](SupervisedProcess process) { on_exit(std::move(process)); }),
      engine_pid_(::getpid()) {}

void Supervisor::start() {
  if (auto board = SupervisorBoard::create()) board_ = std::move(*board);
  const bool alone = options_.workers.size() == 1;
  for (size_t i = 0; i < options_.workers.size(); ++i)
    groups_.emplace_back(static_cast<int>(i), alone, options_.workers[i], options_.max_restarts,
                         options_.seed);
  respawn();
}

// Whatever does not run.
void Supervisor::respawn() {
  if (!options_.coordinator.empty() && !processes_.coordinator_runs()) spawn_coordinator();
  for (SupervisedGroup& group : groups_)
    if (!group.failed && !group.regrouping && !processes_.run(group.index)) spawn_workers(group);
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
  if (board_.fd() >= 0) argv.insert(argv.end(), {"--board-fd", std::to_string(board_.fd())});
  engine_pid_ = spawn(argv, -1, -1, {writer.get(), board_.fd()});
}

void Supervisor::spawn_workers(SupervisedGroup& group) {
  group.was_ready = false;
  for (size_t rank = 0; rank < group.workers.size() && phase_ != Phase::kEnding; ++rank) {
    std::vector<int> pass;
    const std::vector<std::string> argv = group.begin(rank, pass);
    group.last_run[rank].pid = spawn(argv, group.index, static_cast<int>(rank), pass);
    group.last_run[rank].ended.clear();
  }
}

// Its pid; 0: there is none, and all ends.
pid_t Supervisor::spawn(const std::vector<std::string>& argv, int group, int rank,
                        const std::vector<int>& pass) {
  const auto pid = processes_.spawn(argv, group, rank, pass);
  if (pid) return *pid;
  log::error("{}", pid.error().message);
  finish(exit_code(pid.error().code));
  return 0;
}

SupervisedGroup* Supervisor::find(int32_t group) {
  const bool known = group >= 0 && group < static_cast<int32_t>(groups_.size());
  return known ? &groups_[static_cast<size_t>(group)] : nullptr;
}

void Supervisor::on_exit(SupervisedProcess process) {
  const pid_t pid = process.child.pid();
  const ChildProcess::End end = process.child.reap();
  SupervisedGroup* group = find(process.group);
  if (group != nullptr && !group->regrouping)
    group->last_run[static_cast<size_t>(process.rank)].ended = describe(end);
  if (phase_ == Phase::kEnding) {
    const bool as_told = group == nullptr || group->failed || ended_as_told(end);
    if (exit_code_ == kExitOk && !as_told) exit_code_ = exit_code_of(end);
  } else if (group == nullptr) {
    on_coordinator_exit(pid, end);
  } else if (group->failed) {
    if (!processes_.run(group->index)) remove_segments(*group);
  } else if (group->regrouping) {
    group_gone(*group);
  } else {
    on_worker_exit(*group, process.rank, pid, end);
  }
  check_finished();
}

void Supervisor::on_coordinator_exit(pid_t pid, const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  if (phase_ == Phase::kDraining) return finish(ended_as_told(end) ? kExitOk : code);
  const bool given_up = std::ranges::all_of(
      groups_, [](const auto& group) { return group.given_up || group.failed; });
  if (code == kExitOk || code == kExitConfig || given_up) return finish(code);
  log::error("the coordinator ended by {}", describe(end));
  const auto comes_back = [](const auto& group) { return group.regrouping || group.failed; };
  if (std::ranges::all_of(groups_, comes_back)) return;  // it comes back with its workers
  close_incident(incident_);
  incident_.emplace();
  incident_->process = fmt::format("coordinator (pid {})", pid);
  incident_->ended = describe(end);
  for (SupervisedGroup& group : groups_) {
    group.isolating = false;  // its requests are gone
    const std::vector<RankFlight> flights = group.flights_now();
    incident_->flights.insert(incident_->flights.end(), flights.begin(), flights.end());
    if (group.early) incident_->loss = std::exchange(group.early, std::nullopt);
  }
  const auto pause = pause_before(restarts_, "the coordinator", give_up_code(end));
  if (!pause) return;
  bool keeps = false;
  for (SupervisedGroup& group : groups_) {
    if (comes_back(group)) continue;
    if (std::exchange(group.ready, false)) {
      keeps = true;
    } else {
      log::error("the coordinator is lost; its group starts again");
      regroup(group, *pause);
    }
  }
  if (!keeps) return;
  log::info("its workers keep weights and graphs for the next one");
  later(*pause, [this] {
    close_incident(incident_);
    const bool some = std::ranges::any_of(groups_, [this](const auto& group) {
      return !group.regrouping && processes_.run(group.index);
    });
    // Where workers were lost meanwhile, it comes back with them.
    if (some && phase_ == Phase::kServing && !processes_.coordinator_runs()) spawn_coordinator();
  });
}

// A worker ends with 0 when its coordinator tells it to, whose report says why and may come later.
void Supervisor::ask_why(SupervisedGroup& group, int rank, pid_t pid,
                         const ChildProcess::End& end) {
  later(kEndFollows, [this, &group, rank, pid, end] {
    const bool known = phase_ == Phase::kEnding || group.regrouping || group.failed ||
                       group.last_run[static_cast<size_t>(rank)].pid != pid;
    if (!known) on_worker_exit(group, rank, pid, end, /*asked_why=*/true);
  });
}

void Supervisor::on_worker_exit(SupervisedGroup& group, int rank, pid_t pid,
                                const ChildProcess::End& end, bool asked_why) {
  const int code = exit_code_of(end);
  // It leaves with a coordinator that has drained.
  if (phase_ == Phase::kDraining && code == kExitOk) return;
  // Told to leave because of another rank, whose own end is still to come.
  if (group.early && code == kExitOk) return;
  // Told to leave by a coordinator that has given up and is about to end with the reason.
  if (group.given_up && code != kExitConfig) return;
  if (code == kExitOk && !asked_why) return ask_why(group, rank, pid, end);
  // Of workers that have served, it is a refusal: they do not fit a new coordinator.
  if (code == kExitConfig && !group.was_ready) {
    // As long as none serves it is told at once: the next groups would fail as this one did.
    const bool served = std::ranges::any_of(groups_, [](const auto& g) { return g.was_ready; });
    return served ? fail_group(group, code) : finish(code);
  }
  open_incident(group, group.name_of(rank, pid), describe(end), rank);
  lose_group(group, group.alone ? fmt::format("worker {}", rank) : group.name_of(rank),
             give_up_code(end));
}

void Supervisor::on_report(const GroupReport& report) {
  if (report.audit) {
    if (SupervisedGroup* group = find(report.audit->group)) {
      Incident incident = group->make_incident("a step", "", -1);
      incident.audit = report.audit;
      record(incident);
    }
  }
  if (phase_ == Phase::kEnding) return;
  if (report.isolation) {
    for (SupervisedGroup& group : groups_)
      group.isolating = report.isolation->on && group.index == report.isolation->group;
    forget_restarts(report.isolation->explained);
  }
  SupervisedGroup* ready = report.ready ? find(report.group) : nullptr;
  if (ready != nullptr && !ready->regrouping) ready->ready = ready->was_ready = true;
  SupervisedGroup* lost = report.lost ? find(report.lost->group) : nullptr;
  if (lost != nullptr && !lost->failed) on_loss_report(*lost, *report.lost);
}

void Supervisor::on_loss_report(SupervisedGroup& group, const GroupLoss& loss) {
  if (loss.for_good) {
    group.given_up = true;
    const bool others = std::ranges::any_of(
        groups_, [](const auto& each) { return !each.given_up && !each.failed; });
    if (!others) return;  // the coordinator ends itself
    group.early = loss;
    open_incident(group, group.alone ? "the worker group" : fmt::format("group {}", group.index),
                  "", -1);
    return fail_group(group, kExitTryAgain);
  }
  if (group.given_up) return;
  if (group.regrouping) {  // the coordinator's view of what is known already
    if (group.incident && !group.incident->loss) group.incident->loss = loss;
    return;
  }
  // Of a group that has been started again since: it comes too late.
  const bool present =
      std::ranges::any_of(loss.pids, [&](int64_t pid) { return processes_.has(group.index, pid); });
  if (!present) return;
  // A process that ends by itself tells its exit code, too, and shortly.
  const std::string& detector = loss.detector;
  const bool ends = detector == "worker" || detector == "process" || detector == "connection";
  if (!ends) return lose_reported(group, loss);
  group.early = loss;
  later(kEndFollows, [this, &group] {
    if (group.early && !group.regrouping && !group.failed)
      lose_reported(group, GroupLoss(*group.early));
  });
}

void Supervisor::lose_reported(SupervisedGroup& group, const GroupLoss& loss) {
  group.early = loss;
  open_incident(group, group.alone ? "the worker group" : fmt::format("group {}", group.index), "",
                -1);
  Incident& incident = *group.incident;
  const int behind = lagging_rank(incident);
  incident.rank = loss.ranks.size() == 1 ? loss.ranks.front() : behind;
  for (const RankFlight& flight : incident.flights)
    if (flight.rank == incident.rank) incident.process = group.name_of(flight.rank, flight.pid);
  lose_group(group, incident.process, kExitTryAgain);
}

// The rings as they are now; the coordinator's view may still come.
void Supervisor::open_incident(SupervisedGroup& group, std::string process, std::string ended,
                               int rank) {
  close_incident(group.incident);
  group.incident = group.make_incident(std::move(process), std::move(ended), rank);
}

void Supervisor::close_incident(std::optional<Incident>& incident) {
  if (!incident) return;
  record(*incident);
  incident.reset();
}

void Supervisor::record(const Incident& incident) {
  board_.count_incident();
  if (!record_incident(options_.incident_dir, incident)) board_.count_unwritten();
}

// The last ones: a request that is gone was what lost them, whichever groups it was in.
void Supervisor::forget_restarts(int count) {
  for (; count > 0 && !lost_groups_.empty(); --count) {
    find(lost_groups_.back())->restarts.forget(1);
    lost_groups_.pop_back();
  }
}

// While requests run alone to find the one at fault, a loss ends one of them and is no crash loop.
void Supervisor::lose_group(SupervisedGroup& group, const std::string& who, int code) {
  const bool counts = !(std::exchange(group.ready, false) && group.isolating);
  log::error("{} is lost; its group starts again", who);
  if (!counts) return regroup(group, RestartPolicy::kFirstPause);
  const auto pause = group.restarts.next(executor_->clock().now());
  if (pause) {
    lost_groups_.push_back(group.index);
    if (lost_groups_.size() > kKeptLosses) lost_groups_.pop_front();
    return regroup(group, *pause);
  }
  log::error("{} was lost and {} restarts in a minute did not help; giving up{} (exit {})", who,
             options_.max_restarts, group.alone ? "" : fmt::format(" group {}", group.index), code);
  fail_group(group, code);
}

// It is not started again. The others serve on; without one there is nothing left to do.
void Supervisor::fail_group(SupervisedGroup& group, int code) {
  group.failed = true;
  group.ready = false;
  group.regrouping.reset();
  if (std::ranges::all_of(groups_, [](const auto& each) { return each.failed; }))
    return finish(code);
  log::error("group {} has failed; the others serve on", group.index);
  board_.give_up(group.index);
  if (options_.on_given_up) options_.on_given_up(group.index);
  close_incident(group.incident);
  processes_.signal_group(group.index, SIGKILL);
  if (!processes_.run(group.index)) remove_segments(group);
}

void Supervisor::regroup(SupervisedGroup& group, Duration pause) {
  group.regrouping = pause;
  processes_.signal_group(group.index, SIGKILL);
  group_gone(group);
}

void Supervisor::group_gone(SupervisedGroup& group) {
  if (processes_.run(group.index)) return;
  remove_segments(group);
  later(*group.regrouping, [this, &group] {
    if (phase_ == Phase::kEnding || group.failed) return;
    close_incident(group.incident);
    close_incident(incident_);
    group.regrouping.reset();
    respawn();
  });
}

// Those of other groups are in use.
void Supervisor::remove_segments(const SupervisedGroup& group) const {
  if (group.alone) return remove_segments_of(engine_pid_);
  remove_segments_of(engine_pid_, group.index);
}

std::optional<Duration> Supervisor::pause_before(RestartPolicy& restarts, const std::string& who,
                                                 int code) {
  const auto pause = restarts.next(executor_->clock().now());
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
    processes_.signal_workers(SIGKILL);
    return processes_.signal_coordinator(SIGKILL);
  }
  if (phase_ == Phase::kEnding) return;
  phase_ = Phase::kDraining;
  if (!processes_.coordinator_runs()) return finish(kExitOk);
  // Two of the same kind could arrive as one.
  processes_.signal_coordinator(stops_ == 1 ? SIGTERM : SIGINT);
  kill_coordinator_after(stops_ == 1 ? options_.drain_timeout + kKillAfter : kKillAfter);
}

void Supervisor::kill_coordinator_after(Duration limit) {
  later(limit, [this] {
    if (processes_.coordinator_runs()) log::error("the coordinator does not end: killed");
    processes_.signal_coordinator(SIGKILL);
  });
}

void Supervisor::finish(int code) {
  if (phase_ != Phase::kEnding) exit_code_ = code;
  phase_ = Phase::kEnding;
  for (SupervisedGroup& group : groups_) close_incident(group.incident);
  close_incident(incident_);
  processes_.signal_workers(SIGTERM);
  // Its requests cannot be finished any more: each ends with an error, now.
  processes_.signal_coordinator(SIGTERM);
  processes_.signal_coordinator(SIGINT);
  later(kKillAfter, [this] {
    processes_.signal_workers(SIGKILL);
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
