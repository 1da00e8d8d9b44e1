#include "runtime/supervise/supervised_groups.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/supervise/process_end.h"
#include "runtime/supervise/run_directory.h"

namespace refrain {
namespace {

constexpr Duration kEndFollows = std::chrono::milliseconds(500);  // a failed worker's last words
constexpr Duration kLook = std::chrono::milliseconds(20);         // whether they have come
constexpr size_t kKeptLosses = 64;                                // more than can be explained

bool comes_back(const SupervisedGroup& group) { return group.regrouping || group.failed; }

// Whether it tells of the present processes, which may have ended, and not of those before a start.
bool is_of_present(const GroupLoss& loss, const SupervisedGroup& group) {
  return std::ranges::any_of(group.last_run, [&](const RankFlight& flight) {
    return std::ranges::count(loss.pids, int64_t{flight.pid}) > 0;
  });
}

}  // namespace

SupervisedGroups::SupervisedGroups(const SupervisorOptions& options, const Executor& executor,
                                   SupervisedProcesses& processes, IncidentBook& incidents,
                                   Owner& owner)
    : options_(options),
      executor_(executor),
      processes_(processes),
      incidents_(incidents),
      owner_(owner) {
  const bool alone = options.workers.size() == 1;
  for (size_t i = 0; i < options.workers.size(); ++i)
    groups_.emplace_back(static_cast<int>(i), alone, options.workers[i], options.max_restarts,
                         options.seed);
}

void SupervisedGroups::spawn_missing() {
  for (SupervisedGroup& group : groups_)
    if (!comes_back(group) && !processes_.run(group.index)) spawn_workers(group);
}

void SupervisedGroups::spawn_workers(SupervisedGroup& group) {
  group.was_ready = false;
  for (size_t rank = 0; rank < group.workers.size() && !owner_.ending(); ++rank) {
    std::vector<int> pass;
    const std::vector<std::string> argv = group.begin(rank, pass);
    group.last_run[rank].pid = owner_.spawn(argv, group.index, static_cast<int>(rank), pass);
    group.last_run[rank].ended.clear();
  }
}

SupervisedGroup* SupervisedGroups::find(int32_t group) {
  const bool known = group >= 0 && group < static_cast<int32_t>(groups_.size());
  return known ? &groups_[static_cast<size_t>(group)] : nullptr;
}

void SupervisedGroups::on_exit(SupervisedGroup& group, int rank, pid_t pid,
                               const ChildProcess::End& end) {
  if (group.failed) {
    if (!processes_.run(group.index)) remove_segments(group);
  } else if (group.regrouping) {
    group_gone(group);
  } else {
    on_worker_exit(group, rank, pid, end);
  }
}

// A worker ends with 0 when its coordinator tells it to, whose report says why and may come later.
void SupervisedGroups::ask_why(SupervisedGroup& group, int rank, pid_t pid,
                               const ChildProcess::End& end) {
  owner_.later(kEndFollows, [this, &group, rank, pid, end] {
    const bool known = owner_.ending() || group.regrouping || group.failed ||
                       group.last_run[static_cast<size_t>(rank)].pid != pid;
    if (!known) on_worker_exit(group, rank, pid, end, /*asked_why=*/true);
  });
}

void SupervisedGroups::on_worker_exit(SupervisedGroup& group, int rank, pid_t pid,
                                      const ChildProcess::End& end, bool asked_why) {
  const int code = exit_code_of(end);
  // It leaves with a coordinator that has drained; of a loss that one tells.
  if (owner_.draining() && code == kExitOk) return;
  // Told to leave because of another rank, whose own end is still to come.
  if (group.early && code == kExitOk) return;
  // Told to leave by a coordinator that has given up and is about to end with the reason.
  if (group.given_up && code != kExitConfig) return;
  if (code == kExitOk && !asked_why) return ask_why(group, rank, pid, end);
  // Of workers that have served, it is a refusal: they do not fit a new coordinator.
  if (code == kExitConfig && !group.was_ready) {
    // As long as none serves it is told at once: the next groups would fail as this one did.
    const bool served = std::ranges::any_of(groups_, [](const auto& g) { return g.was_ready; });
    return served ? fail_group(group, code) : owner_.finish(code);
  }
  open_incident(group, group.name_of(rank, pid), describe(end), rank);
  lose_group(group, group.alone ? fmt::format("worker {}", rank) : group.name_of(rank),
             give_up_code(end));
}

void SupervisedGroups::on_report(const GroupReport& report) {
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

void SupervisedGroups::on_loss_report(SupervisedGroup& group, const GroupLoss& loss) {
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
  if (loss.planned) return restart_as_asked(group, loss);
  if (group.regrouping) {  // the coordinator's view of what is known already
    if (group.incident && !group.incident->loss) group.incident->loss = loss;
    return;
  }
  if (!is_of_present(loss, group)) return;  // it comes too late
  // A process that ends by itself tells its exit code, too, and shortly.
  const std::string& detector = loss.detector;
  const bool ends = detector == "worker" || detector == "process" || detector == "connection";
  if (!ends) return lose_reported(group, loss);
  group.early = loss;
  owner_.later(kEndFollows, [this, &group] {
    if (group.early && !group.regrouping && !group.failed)
      lose_reported(group, GroupLoss(*group.early));
  });
}

// No loss: neither an incident nor a restart that counts. Its processes may have ended already.
void SupervisedGroups::restart_as_asked(SupervisedGroup& group, const GroupLoss& loss) {
  if (!is_of_present(loss, group) || group.regrouping) return;
  log::info("{} starts again, as an operator asked",
            group.alone ? "the worker group" : fmt::format("group {}", group.index));
  group.ready = false;
  regroup(group, Duration::zero());
}

void SupervisedGroups::lose_reported(SupervisedGroup& group, const GroupLoss& loss) {
  group.early = loss;
  open_incident(group, group.alone ? "the worker group" : fmt::format("group {}", group.index), "",
                -1);
  Incident& incident = *group.incident;
  const int behind = lagging_rank(incident);
  incident.rank = loss.ranks.size() == 1 ? loss.ranks.front() : behind;
  for (const RankFlight& flight : incident.flights) {
    if (flight.rank != incident.rank) continue;
    incident.process = group.name_of(flight.rank, flight.pid);
    incident.ended = flight.ended;
  }
  lose_group(group, incident.process, kExitTryAgain);
}

// The rings as they are now; the coordinator's view may still come.
void SupervisedGroups::open_incident(SupervisedGroup& group, std::string process, std::string ended,
                                     int rank) {
  incidents_.close(group.incident);
  group.incident = group.make_incident(std::move(process), std::move(ended), rank);
}

// The last ones: a request that is gone was what lost them, whichever groups it was in.
void SupervisedGroups::forget_restarts(int count) {
  for (; count > 0 && !lost_groups_.empty(); --count) {
    find(lost_groups_.back())->restarts.forget(1);
    lost_groups_.pop_back();
  }
}

// While requests run alone to find the one at fault, a loss ends one of them and is no crash loop.
void SupervisedGroups::lose_group(SupervisedGroup& group, const std::string& who, int code) {
  const bool counts = !(std::exchange(group.ready, false) && group.isolating);
  log::error("{} is lost; its group starts again", who);
  if (!counts) return regroup(group, RestartPolicy::kFirstPause);
  const auto pause = group.restarts.next(executor_.clock().now());
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
void SupervisedGroups::fail_group(SupervisedGroup& group, int code) {
  group.failed = true;
  group.ready = false;
  group.regrouping.reset();
  if (std::ranges::all_of(groups_, [](const auto& each) { return each.failed; }))
    return owner_.finish(code);
  log::error("group {} has failed; the others serve on", group.index);
  incidents_.board().give_up(group.index);
  if (options_.on_given_up) options_.on_given_up(group.index);
  incidents_.close(group.incident);
  processes_.signal_group(group.index, SIGKILL);
  if (!processes_.run(group.index)) remove_segments(group);
}

void SupervisedGroups::regroup(SupervisedGroup& group, Duration pause) {
  group.regrouping = pause;
  processes_.signal_group(group.index, SIGKILL);
  group_gone(group);
}

void SupervisedGroups::group_gone(SupervisedGroup& group) {
  if (processes_.run(group.index)) return;
  remove_segments(group);
  owner_.later(*group.regrouping, [this, &group] { start_again(group, kEndFollows); });
}

// The coordinator's view of workers that served may still be on its way into the incident.
void SupervisedGroups::start_again(SupervisedGroup& group, Duration patience) {
  if (owner_.ending() || group.failed) return;
  const bool untold =
      group.was_ready && group.incident && !group.incident->loss && processes_.coordinator_runs();
  if (untold && patience > Duration::zero()) {
    owner_.later(kLook, [this, &group, patience] { start_again(group, patience - kLook); });
    return;
  }
  incidents_.close(group.incident);
  group.regrouping.reset();
  owner_.respawn();
}

// Those of other groups are in use.
void SupervisedGroups::remove_segments(const SupervisedGroup& group) const {
  if (group.alone) return remove_segments_of(owner_.engine_pid());
  remove_segments_of(owner_.engine_pid(), group.index);
}

void SupervisedGroups::enter_into(Incident& incident) {
  for (SupervisedGroup& group : groups_) {
    group.isolating = false;  // its requests are gone
    const std::vector<RankFlight> flights = group.flights_now();
    incident.flights.insert(incident.flights.end(), flights.begin(), flights.end());
    if (group.early) incident.loss = std::exchange(group.early, std::nullopt);
  }
}

bool SupervisedGroups::none_goes_on() const {
  return std::ranges::all_of(groups_,
                             [](const auto& group) { return group.given_up || group.failed; });
}

bool SupervisedGroups::all_come_back() const { return std::ranges::all_of(groups_, comes_back); }

bool SupervisedGroups::keep_or_regroup(Duration pause) {
  bool keeps = false;
  for (SupervisedGroup& group : groups_) {
    if (comes_back(group)) continue;
    if (std::exchange(group.ready, false)) {
      keeps = true;
    } else {
      log::error("the coordinator is lost; its group starts again");
      regroup(group, pause);
    }
  }
  return keeps;
}

bool SupervisedGroups::any_kept() const {
  return std::ranges::any_of(groups_, [this](const auto& group) {
    return !group.regrouping && processes_.run(group.index);
  });
}

void SupervisedGroups::close_incidents() {
  for (SupervisedGroup& group : groups_) incidents_.close(group.incident);
}

}  // namespace refrain
