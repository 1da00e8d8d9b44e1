// The half of Cluster that makes things go wrong.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/sim/cluster.h"
#include "tests/sim/tap_endpoint.h"

namespace refrain::sim {
namespace {

// 60 s, begun anew when the coordinator stood still or another rank came late.
constexpr Duration kStartHangFound = std::chrono::seconds(90);

}  // namespace

Cluster::Worker* Cluster::at(int32_t place) {
  Worker& worker = workers_[static_cast<size_t>(place)];
  return worker.process && worker.process->alive() ? &worker : nullptr;
}

void Cluster::kill_worker(int32_t place) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: place {} (pid {}) is killed", place, pid));
  worker->process->kill();
  supervisor_->post([this, pid] { on_worker_exit(pid); });
}

// The coordinator ends a worker that does not go.
void Cluster::kill_process(int64_t pid) {
  for (Worker& worker : workers_) {
    if (!worker.process || worker.process->settings.pid != pid) continue;
    if (!options_.watched || !worker.process->alive())
      violations.push_back(fmt::format("pid {} is killed, which is not watched or gone", pid));
    note(fmt::format("the coordinator kills pid {}", pid));
    worker.process->kill();
    supervisor_->post([this, pid] { on_worker_exit(pid); });
  }
}

void Cluster::freeze_worker(int32_t place, Duration how_long) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: place {} (pid {}) stands still", place, pid));
  worker->process->stop();
  after(how_long, [this, place, pid] {
    Worker* still = at(place);
    if (still == nullptr || still->process->settings.pid != pid) return;
    note(fmt::format("place {} (pid {}) goes on", place, pid));
    still->process->resume();
  });
}

void Cluster::cut_worker(int32_t place, Duration how_long) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: the line of place {} (pid {}) is cut", place, pid));
  worker->line->set_cut(true);
  after(how_long, [this, place, pid] {
    Worker* still = at(place);
    if (still == nullptr || still->process->settings.pid != pid) return;
    note(fmt::format("the line of place {} (pid {}) is whole again", place, pid));
    still->line->set_cut(false);
  });
}

void Cluster::slow_worker(int32_t place, Duration each_step, Duration how_long) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  const int64_t pid = worker->process->settings.pid;
  note(fmt::format("FAULT: place {} (pid {}) is slow", place, pid));
  worker->process->device().slow_down(each_step);
  after(how_long, [this, place, pid] {
    Worker* still = at(place);
    if (still != nullptr && still->process->settings.pid == pid)
      still->process->device().slow_down(Duration::zero());
  });
}

void Cluster::fault_step(int32_t place, StepFault fault) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  note(fmt::format("FAULT: the next step of place {} goes wrong ({})", place,
                   static_cast<int>(fault)));
  worker->process->device().fault_next_step(fault);
}

void Cluster::hang_next_start(int32_t place) {
  hang_place_ = place;
  kill_worker(place);
}

void Cluster::on_hang(int32_t place, Epoch epoch) {
  note(fmt::format("FAULT: place {} hangs in its start", place));
  hangs_[{group_of(place), epoch}] = {place % num_ranks(), scheduler_.clock().now()};
}

// A hang in a start is found within its limit, and the rank is named.
void Cluster::on_loss(const GroupLoss& loss) {
  lost_to_poison += poisoned_.count({loss.group, loss.epoch});
  const auto hang = hangs_.find({loss.group, loss.epoch});
  if (hang == hangs_.end()) return;
  const Duration took = scheduler_.clock().now() - hang->second.since;
  if (took > kStartHangFound)
    violations.push_back(fmt::format("rank {} hung in its start for {:.1f} s (R-7)",
                                     hang->second.rank,
                                     std::chrono::duration<double>(took).count()));
  if (loss.reason.find("stood still") != std::string::npos &&
      std::ranges::find(loss.ranks, hang->second.rank) == loss.ranks.end())
    violations.push_back("a hang in a start names another rank: " + loss.reason);
}

void Cluster::on_poison(int32_t place, Epoch epoch, const Poison& poison) {
  note(fmt::format("FAULT: a request ends place {} ({})", place, static_cast<int>(poison.kind)));
  poisoned_.insert({group_of(place), epoch});
  if (poison.kind == Poison::Kind::kKilled)
    supervisor_->post([this, place, epoch] {
      Worker* worker = at(place);
      if (worker != nullptr && worker->process->device().epoch() == epoch) kill_worker(place);
    });
}

void Cluster::replay(int32_t place) {
  Worker* worker = at(place);
  if (worker == nullptr || !engine_) return;
  note(fmt::format("FAULT: old frames of place {} come again", place));
  for (const TapEndpoint::Sent& frame : worker->tap->sent()) worker->tap->send_again(frame);
  std::vector<TapEndpoint::Sent> frames = old_frames_;
  for (TapEndpoint::Sent& frame : server_tap_->sent()) frames.push_back(std::move(frame));
  for (const TapEndpoint::Sent& frame : frames)
    if (frame.first == worker->name) server_tap_->send_again(frame);
}

void Cluster::restart_group(int32_t group, std::optional<ipc::GroupRole> role) {
  if (!engine_) return;
  note(fmt::format("an operator has group {} started again{}{}", group, role ? " as " : "",
                   role ? ipc::to_string(*role) : ""));
  engine_->control_group({group, GroupOrder::What::kRestart, role}, [](const Status&) {});
}

// A rank that takes a living coordinator for dead.
void Cluster::greet_again(int32_t place) {
  Worker* worker = at(place);
  if (worker == nullptr) return;
  const auto found = watching_.find(worker->process->settings.pid);
  if (found == watching_.end()) return;
  note(fmt::format("FAULT: place {} thinks that the coordinator is gone", place));
  found->second.executor->post(found->second.gone);
}

void Cluster::kill_coordinator(Duration back_after, Restart with) {
  if (!engine_) return;
  note("FAULT: the coordinator is killed");
  old_frames_ = server_tap_->sent();
  engine_executor_->kill();
  output_executor_->kill();
  engine_.reset();
  watched_.clear();
  for (auto& [pid, watcher] : std::exchange(watching_, {}))
    watcher.executor->post_after(std::chrono::microseconds(scheduler_.random(30'000)),
                                 std::move(watcher.gone));
  on_coordinator_gone(life_);
  for (Succession& each : successions_) each.coordinator_gone(scheduler_.clock().now());
  change_files(with);
  after(back_after, [this] { start_coordinator(); });
}

void Cluster::change_files(Restart with) {
  if (with == Restart::kOtherModel) {
    --files_.vocab;
    note("another model is in its place");
  } else if (with == Restart::kOtherConfig) {
    config_.worker.block_size = config_.worker.block_size == 4 ? 8 : 4;
    note("the next one is configured otherwise");
  }
}

void Cluster::freeze_coordinator(Duration how_long) {
  if (!engine_) return;
  note("FAULT: the coordinator stands still");
  engine_executor_->stop();
  output_executor_->stop();
  after(how_long, [this, engine = engine_executor_, output = output_executor_] {
    note("the coordinator goes on");
    engine->resume();
    output->resume();
  });
}

void Cluster::heal() {
  note("from now on nothing goes wrong");
  healed_ = true;
  hang_place_ = -1;
  if (engine_) server_line_->set_program({});
  engine_executor_->resume();
  output_executor_->resume();
  for (Worker& worker : workers_) {
    if (!worker.process || !worker.process->alive()) continue;
    worker.line->set_program({});
    worker.line->set_cut(false);
    worker.process->resume();
    worker.process->device().slow_down(Duration::zero());
    worker.process->device().fault_next_step(StepFault::kNone);
  }
}

}  // namespace refrain::sim
