#include "runtime/engine/worker_group.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

GroupLoss loss_of(const GroupFault& fault, const GroupMembership& members) {
  GroupLoss loss;
  loss.epoch = members.epoch();
  loss.detector = fault.detector;
  loss.reason = fault.reason;
  loss.for_good = fault.for_good;
  loss.planned = fault.planned;
  loss.ranks = fault.ranks;
  loss.pids = members.pids();
  return loss;
}

}  // namespace

WorkerGroup::WorkerGroup(WorkerGroupOptions options, std::unique_ptr<ipc::Endpoint> endpoint,
                         std::shared_ptr<Executor> executor, ProcessWatch watch, ProcessKill kill,
                         WorkerGroupHandlers handlers)
    : options_(std::move(options)),
      executor_(std::move(executor)),
      handlers_(std::move(handlers)),
      members_(options_.identity, options_.first_epoch),
      fan_out_(
          std::move(endpoint), members_,
          [this](int32_t rank, const Error& error) {
            fence("connection", rank,
                  fmt::format("{} takes no messages: {}", members_.name_of(rank), error.message));
          }),
      inbox_(members_),
      door_(options_, members_, fan_out_, [this](GroupFault fault) { lose(std::move(fault)); }),
      health_({options_.heartbeat_interval, options_.heartbeat_timeout, options_.start_timeout},
              members_, fan_out_.steps()),
      processes_(std::make_shared<RankProcesses>(members_.num_ranks(), executor_, std::move(watch),
                                                 std::move(kill))) {}

void WorkerGroup::start() {
  health_.waits(now());
  arm_timer(options_.heartbeat_interval);
  fan_out_.start(
      [weak = weak_from_this()](const ipc::PeerId& from, std::span<const std::byte> frame) {
        if (const auto self = weak.lock()) self->on_frame(from, frame);
      });
}

bool WorkerGroup::active() const {
  return state_ == GroupState::kWaiting || state_ == GroupState::kStarting ||
         state_ == GroupState::kReady;
}

void WorkerGroup::send_step(const ipc::Message& step) {
  REFRAIN_CHECK(state_ == GroupState::kReady, "a step for a group that is not ready");
  fan_out_.send_step(step, now());
}

// From a turn of its own: the caller may be in the middle of the engine's or the group's work.
void WorkerGroup::fence(std::string detector, int32_t rank, std::string reason) {
  executor_->post([weak = weak_from_this(), epoch = members_.epoch(),
                   detector = std::move(detector), rank, reason = std::move(reason)] {
    if (const auto self = weak.lock(); self && self->members_.epoch() == epoch)
      self->lose(detector, {rank}, reason);
  });
}

void WorkerGroup::tell(const ipc::Message& message) {
  if (std::holds_alternative<ipc::LoadAdapter>(message)) health_.loads_adapter();
  fan_out_.broadcast(message);
}

void WorkerGroup::give_up(std::string detector, std::string reason) {
  executor_->post([weak = weak_from_this(), detector = std::move(detector),
                   reason = std::move(reason)]() mutable {
    if (const auto self = weak.lock()) self->lose(std::move(detector), {}, reason, true);
  });
}

void WorkerGroup::restart(std::string reason) { lose_as_planned({}, std::move(reason)); }

void WorkerGroup::change_role(ipc::GroupRole role, std::string reason) {
  lose_as_planned(role, std::move(reason));
}

void WorkerGroup::lose_as_planned(std::optional<ipc::GroupRole> role, std::string reason) {
  executor_->post(
      [weak = weak_from_this(), epoch = members_.epoch(), role, reason = std::move(reason)] {
        const auto self = weak.lock();
        if (!self || self->members_.epoch() != epoch) return;
        GroupFault fault{"restart", {}, reason};
        fault.planned = true;
        fault.role = role;
        self->lose(std::move(fault));
      });
}

void WorkerGroup::set_role(ipc::GroupRole role, const ipc::WorkerConfig& worker) {
  options_.worker = worker;
  members_.set_role(ipc::to_string(role));
}

void WorkerGroup::distrust() {
  executor_->post([weak = weak_from_this(), epoch = members_.epoch()] {
    const auto self = weak.lock();
    if (!self || self->members_.epoch() != epoch) return;
    const bool again = std::exchange(self->distrusted_, true);
    const std::string what =
        "a request of one token, made to test the workers, has no finite logit";
    self->lose("canary", {},
               again ? what +
                           ", as with the workers before, though all weights of the checkpoint "
                           "are finite: no restart will help"
                     : what + "; the next workers check their weights",
               again);
  });
}

void WorkerGroup::lose(std::string detector, std::vector<int32_t> ranks, std::string reason,
                       bool for_good) {
  lose({std::move(detector), std::move(ranks), std::move(reason), for_good});
}

// The group is the unit of failure: what is left of it is told to go, and a new set is awaited.
void WorkerGroup::lose(GroupFault fault) {
  if (!active()) return;
  log::at(fault.planned ? log::Level::kInfo : log::Level::kError, "worker group{} of epoch {}: {}",
          options_.identity.num_groups == 1 ? "" : fmt::format(" {}", options_.identity.group),
          members_.epoch(), fault.reason);
  new_role_ = fault.role.has_value();
  if (fault.role) {
    processes_->kill_if_stay(options_.heartbeat_timeout);  // who did not hear it
    fan_out_.broadcast(ipc::TakeRole{*fault.role});
  } else {
    send_away(fault);
  }
  dismiss();
  fan_out_.steps().begin_group(fault.detector == GroupHealth::kProgress ||
                               fault.detector == GroupHealth::kStepDeadline);
  if (!fault.for_good && !fault.planned) ++restarts_;
  if (state_ == GroupState::kReady) health_.waits(now());
  handlers_.on_lost({ErrorCode::kUnavailable, fault.reason, {}}, fault.for_good);
  set_state(fault.for_good ? GroupState::kFailed : GroupState::kWaiting, std::move(fault.reason));
  if (fault.for_good) {
    executor_->cancel(timer_);
  } else {
    arm_timer(options_.heartbeat_interval);
  }
}

void WorkerGroup::send_away(const GroupFault& fault) {
  GroupLoss loss = loss_of(fault, members_);
  loss.group = options_.identity.group;
  loss.last_step = fan_out_.steps().last_done();
  handlers_.on_loss(std::move(loss));
  processes_->kill_if_stay();
  fan_out_.shut_down(fault.reason);
}

void WorkerGroup::dismiss() {
  processes_->let_go();
  members_.dismiss();
  health_.dismissed();
}

void WorkerGroup::stop(const std::string& reason) {
  if (state_ == GroupState::kStopped) return;
  fan_out_.shut_down(reason);
  dismiss();
  executor_->cancel(timer_);
  fan_out_.close();
  set_state(GroupState::kStopped, reason);
}

void WorkerGroup::set_state(GroupState state, std::string detail) {
  detail_ = std::move(detail);
  if (state == state_) return;
  state_ = state;
  handlers_.on_state(state_, detail_);
}

void WorkerGroup::arm_timer(Duration delay) {
  executor_->cancel(timer_);
  health_.expect(now() + delay);
  timer_ = executor_->post_after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_timer();
  });
}

void WorkerGroup::on_timer() {
  const TimePoint at = now();
  const bool paused = health_.stood_still(at);
  // To a rank that starts it only shows that its connection is alive: a loading device is silent.
  fan_out_.beat_all();
  if (state_ == GroupState::kReady) {
    if (!paused)
      if (auto fault = health_.check(at)) return lose(std::move(*fault));
    return arm_timer(health_.until_check(at));
  }
  if (state_ == GroupState::kStarting && !paused)
    if (auto fault = health_.start_stall(at)) return lose(std::move(*fault));
  if (state_ != GroupState::kWaiting && state_ != GroupState::kStarting) return;
  if (auto fault = health_.start_deadline(at)) return lose(std::move(*fault));
  arm_timer(health_.until_start_check(at));
}

void WorkerGroup::on_frame(const ipc::PeerId& from, std::span<const std::byte> bytes) {
  if (!active()) return;
  auto taken = inbox_.take(from, bytes, now());
  if (!taken) return lose(std::move(taken.error()));
  if (!*taken) return;
  auto& [rank, message] = **taken;
  if (const auto* hello = std::get_if<ipc::Hello>(&message)) return on_hello(from, *hello);
  health_.heard(rank, now());
  if (const auto* position = std::get_if<ipc::Position>(&message)) {
    if (health_.position(rank, *position, now()) && state_ == GroupState::kReady)
      handlers_.on_device_progress();
    return;
  }
  if (const auto* pulled = std::get_if<ipc::Pulled>(&message)) {
    if (state_ == GroupState::kReady && handlers_.on_pulled) handlers_.on_pulled(rank, *pulled);
    return;
  }
  health_.heard_device(rank, now());
  on_message(rank, std::move(message));
}

void WorkerGroup::on_hello(const ipc::PeerId& from, const ipc::Hello& hello) {
  if (!door_.opens(from, hello, *processes_)) return;
  auto mixed = members_.mixed_with(hello);
  door_.join(from, hello, distrusted_);
  health_.joined(hello.rank, now());
  watch(hello);
  fan_out_.beat_or_tell(hello.rank);
  if (state_ == GroupState::kWaiting) {
    arm_timer(options_.heartbeat_interval);
    set_state(GroupState::kStarting, fmt::format("{} is here", members_.name_of(hello.rank)));
  }
  if (mixed) lose("start", {hello.rank}, std::move(*mixed));
}

void WorkerGroup::watch(const ipc::Hello& hello) {
  const auto ended = [weak = weak_from_this(), epoch = members_.epoch(), rank = hello.rank] {
    if (const auto self = weak.lock(); self && self->members_.epoch() == epoch)
      self->on_process_end(rank);
  };
  const ProcessIdentity process{hello.realm, hello.pid, hello.process_start};
  if (!process.same_realm(options_.process)) return;  // its pid means nothing here
  if (!processes_->watch(hello.rank, process, ended))
    log::warn("the process of {} cannot be watched; its connection and heartbeats are",
              members_.name_of(hello.rank));
}

void WorkerGroup::on_message(int32_t rank, ipc::Message message) {
  if (auto* result = std::get_if<ipc::StepResult>(&message)) {
    on_step_result(rank, std::move(*result));
  } else if (const auto* beat = std::get_if<ipc::Heartbeat>(&message)) {
    health_.at_step(rank, beat->last_step);
  } else if (auto* progress = std::get_if<ipc::Progress>(&message)) {
    if (const auto shown = health_.progress(rank, std::move(*progress), now())) {
      detail_ = progress_line(*shown);
      handlers_.on_progress(*shown);
    }
  } else if (auto* address = std::get_if<ipc::RankAddress>(&message)) {
    auto peers = members_.meet(rank, std::move(*address));
    if (!peers) return lose(std::move(peers.error()));
    if (*peers) fan_out_.broadcast(std::move(**peers));
  } else if (const auto* loaded = std::get_if<ipc::Loaded>(&message)) {
    on_loaded(rank, *loaded);
  } else if (auto* ready = std::get_if<ipc::Ready>(&message)) {
    on_ready(rank, std::move(*ready));
  } else if (const auto* grammar = std::get_if<ipc::GrammarReady>(&message)) {
    if (state_ == GroupState::kReady) handlers_.on_grammar_ready(grammar->request);
  } else if (const auto* adapter = std::get_if<ipc::AdapterLoaded>(&message)) {
    health_.adapter_loaded(rank);
    if (handlers_.on_adapter) handlers_.on_adapter(rank, *adapter);
  } else if (const auto* own = std::get_if<ipc::KvExport>(&message)) {
    if (handlers_.on_kv_export) handlers_.on_kv_export(rank, *own);
  } else if (const auto* failed = std::get_if<ipc::Failed>(&message)) {
    on_failed(rank, *failed);
  } else {
    lose("frames", {rank},
         fmt::format("{} sent {}, which only a coordinator sends", members_.name_of(rank),
                     ipc::message_name(message.index())));
  }
}

void WorkerGroup::on_loaded(int32_t rank, const ipc::Loaded& loaded) {
  auto agreed = members_.loaded(rank, loaded, options_.worker);
  if (!agreed) return lose(std::move(agreed.error()));
  health_.moved(rank, now(), false);
  if (!*agreed) return;
  for (int32_t each = 0; each < members_.num_ranks(); ++each) health_.moved(each, now(), true);
  ipc::InitCache init;
  for (const ipc::StateGroup& group : **agreed) init.num_blocks.push_back(group.num_blocks);
  fan_out_.broadcast(std::move(init));
}

void WorkerGroup::on_ready(int32_t rank, ipc::Ready ready) {
  auto agreed = members_.ready(rank, std::move(ready));
  if (!agreed) return lose(std::move(agreed.error()));
  health_.moved(rank, now(), false);
  if (!*agreed) return;
  health_.serves(now());
  state_ = GroupState::kReady;
  const int32_t ranks = members_.num_ranks();
  detail_ = fmt::format("{} rank{} ready{}", ranks, ranks == 1 ? "" : "s",
                        !members_.adopted() ? ""
                        : new_role_         ? ", with the graphs of another role"
                                            : ", adopted with weights and graphs");
  arm_timer(options_.heartbeat_interval);
  handlers_.on_ready(**agreed);
  handlers_.on_state(state_, detail_);
}

void WorkerGroup::on_step_result(int32_t rank, ipc::StepResult result) {
  health_.at_step(rank, result.step);
  auto done = fan_out_.answer(rank, std::move(result), now());
  if (!done) return lose("answers", {rank}, done.error().message);
  if (*done) handlers_.on_step(std::move(**done));
}

// A process that failed says why in its last frame, which may come after the news of its end.
void WorkerGroup::on_process_end(int32_t rank) {
  executor_->post_after(kLastWords, [weak = weak_from_this(), epoch = members_.epoch(), rank] {
    if (const auto self = weak.lock(); self && self->members_.epoch() == epoch)
      self->lose("process", {rank},
                 fmt::format("the process of {} ended", self->members_.name_of(rank)));
  });
}

void WorkerGroup::on_failed(int32_t rank, const ipc::Failed& failed) {
  const std::string where = failed.step > 0 ? fmt::format(" at step {}", failed.step) : "";
  lose("worker", {rank},
       fmt::format("{} failed{}: {}", members_.name_of(rank), where, failed.message),
       failed.configuration);
}

void WorkerGroup::fill(GroupStats& stats) const {
  stats.state = state_;
  stats.state_detail = detail_;
  stats.epoch = epoch();
  stats.group_restarts = restarts_;
  if (state_ != GroupState::kReady) return;
  stats.ready = ready();
  stats.devices = members_.devices();
}

}  // namespace refrain
