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

constexpr Duration kKillAfter = std::chrono::seconds(5);          // a process that ignores SIGTERM
constexpr Duration kEndFollows = std::chrono::milliseconds(500);  // a failed worker's last words

// Of a process: one of the four documented ones. A signal that it did not expect is a fault inside.
int exit_code_of(const ChildProcess::End& end) {
  if (end.signal != 0) return kExitInternal;
  const bool known = end.code == kExitOk || end.code == kExitConfig || end.code == kExitTryAgain;
  return known ? end.code : kExitInternal;
}

// By our own signal, if it came before the program could handle it, when nothing was accepted yet.
bool ended_as_told(const ChildProcess::End& end) {
  return end.signal == SIGTERM || end.signal == SIGINT || (end.signal == 0 && end.code == kExitOk);
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

void Supervisor::start() {
  if (auto board = SupervisorBoard::create()) board_ = std::move(*board);
  last_run_.resize(options_.workers.size());
  for (size_t rank = 0; rank < options_.workers.size(); ++rank) {
    last_run_[rank].rank = static_cast<int>(rank);
    auto fd = ipc::FlightRing::create();
    auto ring = fd ? ipc::FlightRing::map(fd->get()) : forward_error(fd.error());
    if (!ring) log::warn("rank {} has no flight recorder: {}", rank, ring.error().message);
    flight_fds_.push_back(fd ? std::move(*fd) : UniqueFd());
    flights_.push_back(ring ? std::move(*ring) : ipc::FlightRing());
  }
  respawn();
}

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
  if (board_.fd() >= 0) argv.insert(argv.end(), {"--board-fd", std::to_string(board_.fd())});
  spawn(std::move(argv), -1, {writer.get(), board_.fd()});
}

void Supervisor::spawn_workers() {
  was_ready_ = false;
  for (size_t rank = 0; rank < options_.workers.size() && phase_ != Phase::kEnding; ++rank) {
    const int flight = flight_fds_[rank].get();
    flights_[rank].clear();
    std::vector<std::string> argv = options_.workers[rank];
    if (flight >= 0) argv.insert(argv.end(), {"--flight-fd", std::to_string(flight)});
    spawn(std::move(argv), static_cast<int>(rank), {flight});
  }
}

void Supervisor::spawn(std::vector<std::string> argv, int rank, const std::vector<int>& pass) {
  auto child = ChildProcess::spawn(argv, pass);
  if (!child) {
    log::error("{}", child.error().message);
    return finish(exit_code(child.error().code));
  }
  const pid_t pid = child->pid();
  if (rank < 0) {
    engine_pid_ = pid;
  } else {
    last_run_[static_cast<size_t>(rank)].pid = pid;
    last_run_[static_cast<size_t>(rank)].ended.clear();
  }
  processes_.push_back({std::move(*child), rank});
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
  if (!process.coordinator() && !regrouping_)
    last_run_[static_cast<size_t>(process.rank)].ended = describe(end);
  if (phase_ == Phase::kEnding) {
    const bool as_told = !process.coordinator() || ended_as_told(end);
    if (exit_code_ == kExitOk && !as_told) exit_code_ = exit_code_of(end);
  } else if (process.coordinator()) {
    on_coordinator_exit(pid, end);
  } else if (regrouping_) {
    group_gone();
  } else {
    on_worker_exit(process.rank, pid, end);
  }
  check_finished();
}

void Supervisor::on_coordinator_exit(pid_t pid, const ChildProcess::End& end) {
  const int code = exit_code_of(end);
  if (phase_ == Phase::kDraining) return finish(ended_as_told(end) ? kExitOk : code);
  if (code == kExitOk || code == kExitConfig || given_up_) return finish(code);
  log::error("the coordinator ended by {}", describe(end));
  if (regrouping_) return;  // it comes back with its workers
  isolating_ = false;       // its requests are gone
  open_incident(fmt::format("coordinator (pid {})", pid), describe(end), -1);
  if (!std::exchange(ready_, false)) return lose_group("the coordinator", give_up_code(end));
  const auto pause = pause_before("the coordinator", give_up_code(end));
  if (!pause) return;
  log::info("its workers keep weights and graphs for the next one");
  later(*pause, [this] {
    if (regrouping_) return;  // a worker was lost meanwhile
    close_incident();
    if (phase_ == Phase::kServing && !coordinator_runs()) spawn_coordinator();
  });
}

// A worker ends with 0 when its coordinator tells it to, whose report says why and may come later.
void Supervisor::ask_why(int rank, pid_t pid, const ChildProcess::End& end) {
  later(kEndFollows, [this, rank, pid, end] {
    const bool known =
        phase_ == Phase::kEnding || regrouping_ || last_run_[static_cast<size_t>(rank)].pid != pid;
    if (!known) on_worker_exit(rank, pid, end, /*asked_why=*/true);
  });
}

void Supervisor::on_worker_exit(int rank, pid_t pid, const ChildProcess::End& end, bool asked_why) {
  const int code = exit_code_of(end);
  // It leaves with a coordinator that has drained.
  if (phase_ == Phase::kDraining && code == kExitOk) return;
  // Told to leave because of another rank, whose own end is still to come.
  if (early_ && code == kExitOk) return;
  // Told to leave by a coordinator that has given up and is about to end with the reason.
  if (given_up_ && code != kExitConfig) return;
  if (code == kExitOk && !asked_why) return ask_why(rank, pid, end);
  // Of workers that have served, it is a refusal: they do not fit a new coordinator.
  if (code == kExitConfig && !was_ready_) return finish(code);
  open_incident(fmt::format("rank {} (pid {})", rank, pid), describe(end), rank);
  lose_group(fmt::format("worker {}", rank), give_up_code(end));
}

void Supervisor::on_report(const GroupReport& report) {
  if (report.audit) record({"a step", "", -1, flights_now(), {}, report.audit});
  if (phase_ == Phase::kEnding) return;
  if (report.isolation) {
    isolating_ = report.isolation->on;
    restarts_.forget(report.isolation->explained);
  }
  if (report.ready && !regrouping_) ready_ = was_ready_ = true;
  if (report.lost && report.lost->for_good) given_up_ = true;
  if (!report.lost || given_up_) return;  // the coordinator ends itself
  if (regrouping_) {                      // the coordinator's view of what is known already
    if (incident_ && !incident_->loss) incident_->loss = report.lost;
    return;
  }
  // Of a group that has been started again since: it comes too late.
  const bool present = std::ranges::any_of(report.lost->pids, [this](int64_t pid) {
    return std::ranges::any_of(processes_, [pid](const Process& process) {
      return !process.coordinator() && process.child.pid() == pid;
    });
  });
  if (!present) return;
  // A process that ends by itself tells its exit code, too, and shortly.
  const std::string& detector = report.lost->detector;
  const bool ends = detector == "worker" || detector == "process" || detector == "connection";
  if (!ends) return lose_reported(*report.lost);
  early_ = report.lost;
  later(kEndFollows, [this] {
    if (early_ && !regrouping_) lose_reported(GroupLoss(*early_));
  });
}

void Supervisor::lose_reported(const GroupLoss& loss) {
  early_ = loss;
  open_incident("the worker group", "", -1);
  const int behind = lagging_rank(*incident_);
  incident_->rank = loss.ranks.size() == 1 ? loss.ranks.front() : behind;
  for (const RankFlight& flight : incident_->flights)
    if (flight.rank == incident_->rank)
      incident_->process = fmt::format("rank {} (pid {})", flight.rank, flight.pid);
  lose_group(incident_->process, kExitTryAgain);
}

// The rings as they are now; the coordinator's view may still come.
void Supervisor::open_incident(std::string process, std::string ended, int rank) {
  close_incident();
  incident_.emplace();
  incident_->process = std::move(process);
  incident_->ended = std::move(ended);
  incident_->rank = rank;
  incident_->loss = std::exchange(early_, std::nullopt);
  incident_->flights = flights_now();
}

std::vector<RankFlight> Supervisor::flights_now() const {
  std::vector<RankFlight> flights = last_run_;
  for (size_t i = 0; i < flights_.size(); ++i)
    flights[i].records = flights_[i].read(ipc::FlightRing::kRecords);
  return flights;
}

void Supervisor::close_incident() {
  if (!incident_) return;
  record(*incident_);
  incident_.reset();
}

void Supervisor::record(const Incident& incident) {
  const std::string what = describe(incident);
  board_.count_incident();
  if (options_.incident_dir.empty()) {
    log::error("incident: {}", what);
  } else if (const auto path = write_incident(options_.incident_dir, incident)) {
    log::error("incident: {}: {}", what, *path);
  } else {
    board_.count_unwritten();
    log::error("incident: {}; the record could not be written: {}", what, path.error().message);
  }
}

// While requests run alone to find the one at fault, a loss ends one of them and is no crash loop.
void Supervisor::lose_group(const std::string& who, int code) {
  const bool counts = !(std::exchange(ready_, false) && isolating_);
  log::error("{} is lost; its group starts again", who);
  regrouping_ = counts ? pause_before(who, code) : RestartPolicy::kFirstPause;
  if (!regrouping_) return;
  kill_workers(SIGKILL);
  group_gone();
}

void Supervisor::group_gone() {
  if (workers_run()) return;
  remove_segments_of(engine_pid_);
  later(*regrouping_, [this] {
    if (phase_ == Phase::kEnding) return;
    close_incident();
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
  kill_coordinator_after(stops_ == 1 ? options_.drain_timeout + kKillAfter : kKillAfter);
}

void Supervisor::kill_coordinator_after(Duration limit) {
  later(limit, [this] {
    if (coordinator_runs()) log::error("the coordinator does not end: killed");
    signal_coordinator(SIGKILL);
  });
}

void Supervisor::finish(int code) {
  if (phase_ != Phase::kEnding) exit_code_ = code;
  phase_ = Phase::kEnding;
  close_incident();
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
    if (!process.coordinator()) process.child.signal(number);
}

void Supervisor::signal_coordinator(int number) const {
  for (const Process& process : processes_)
    if (process.coordinator()) process.child.signal(number);
}

bool Supervisor::coordinator_runs() const {
  return std::ranges::any_of(processes_, [](const Process& p) { return p.coordinator(); });
}

bool Supervisor::workers_run() const {
  return std::ranges::any_of(processes_, [](const Process& p) { return !p.coordinator(); });
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
