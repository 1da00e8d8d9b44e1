#include "runtime/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/group_endpoints.h"

namespace refrain {

using Events = std::vector<TokenEvent>;

EngineCore::EngineCore(EngineParts parts)
    : config_(parts.config),
      model_(parts.model),
      executor_(parts.engine_executor),
      parts_(std::move(parts)),
      trace_(parts_.trace),
      intake_(config_, model_),
      loads_(config_, groups_,
             {[this](AdapterId id, const Error& error) {
                placement_.end_where([id](const auto& live) { return live.adapter == id; }, error);
                publish();
              },
              [this](int32_t index) { pump(index); }}),
      live_(*executor_, stats_, trace_.get(),
            [this](RequestId id, const LiveRequest& live) { request_gone(id, live); }),
      placement_(config_, groups_, live_,
                 [this](Isolation isolation) { reports_.isolation(isolation); }),
      deadlines_(*executor_, intake_.admission(), live_, placement_,
                 {[this] { pump_all(); }, [this] { publish(); }}),
      control_(config_.num_groups(), to_duration(config_.drain_timeout), *executor_,
               control_hooks()) {}

void EngineCore::connect() {
  for (AdapterSource& source : parts_.adapters) {
    const auto added = loads_.adapters().add(std::move(source), nullptr);
    REFRAIN_CHECK(added.has_value(), "{}", added.error().message);
  }
  const std::weak_ptr<EngineCore> weak = weak_from_this();
  // Output executors tell the engine by posting to it.
  const auto on_engine = [weak](auto call) {
    const auto self = weak.lock();
    if (!self) return;
    self->executor_->post([weak, call] {
      if (const auto core = weak.lock()) call(*core);
    });
  };
  deadlines_.connect(run_later(executor_, weak));
  control_.connect(run_later(executor_, weak));
  live_.connect(parts_.outputs(
      [on_engine](RequestId id) {
        on_engine([id](EngineCore& core) { core.ended_by_stop_string(id); });
      },
      [on_engine] { on_engine([](EngineCore& core) { core.pump_all(); }); }));
  auto endpoints = split_endpoint(std::move(parts_.endpoint), config_.num_groups());
  for (size_t at = 0; at < endpoints.size(); ++at) {
    const auto service = std::make_shared<GroupService>(
        group_parts(parts_, config_.groups().at(at), std::move(endpoints[at])),
        handlers_of(static_cast<int32_t>(at)));
    groups_.add(service);
    service->connect();
  }
}

void EngineCore::start() {
  for (const auto& each : groups_) each->start();
}

Result<RequestId> EngineCore::submit(GenerateRequest request, OutputSink sink) {
  REFRAIN_ASSIGN_OR_RETURN(const RequestId id, intake_.accept(request, now()));
  AcceptedRequest accepted{id,
                           {},
                           intake_.sequence_params(id, request),
                           request.begun,
                           std::nullopt,
                           request.output_thread};
  if (request.timeout) accepted.deadline = now() + *request.timeout;
  live_.open(id, request, std::move(sink));
  accepted.prompt = std::move(request.prompt);
  executor_->post([weak = weak_from_this(), accepted = std::move(accepted)]() mutable {
    if (const auto self = weak.lock()) self->enter(std::move(accepted));
  });
  return id;
}

void EngineCore::enter(AcceptedRequest accepted) {
  const RequestId id = accepted.id;
  const AdapterId adapter = accepted.params.adapter;
  const bool has_adapter = adapter == 0 || loads_.adapters().hold(adapter);
  auto sequence =
      std::make_unique<Sequence>(id, std::move(accepted.prompt), std::move(accepted.params));
  if (accepted.begun) sequence->go_on_behind(accepted.begun->tokens, accepted.begun->cached_tokens);
  live_.enter(id, static_cast<size_t>(sequence->prompt_len),
              {sequence->params.setup.num_logprobs, digest_of(sequence->tokens),
               accepted.output_thread, has_adapter ? adapter : 0});
  if (accepted.begun) stats_.change([](EngineStats& counts) { ++counts.requests_resumed; });
  std::optional<Error> refused = deadlines_.over_before_it_entered(id);
  if (!has_adapter)
    refused = Error{ErrorCode::kNotFound, "the model's LoRA adapter has been unloaded", "model"};
  if (groups_.all_failed() || stopped_) refused = intake_.refusal();
  if (refused) return live_.end(id, FinishReason::kError, std::move(refused));
  if (accepted.deadline) deadlines_.end_at(id, *accepted.deadline);
  placement_.route(std::move(sequence));
  if (live_.contains(id) && live_.at(id).group != LiveRequest::kNoGroup) pump(live_.at(id).group);
  deadlines_.watch_queue();
  publish();
}

void EngineCore::cancel(RequestId id) {
  if (!live_.contains(id)) return;
  const int32_t group = placement_.cancel(id);
  live_.end(id, FinishReason::kAbort, std::nullopt);
  pump(group);
  publish();
}

void EngineCore::ended_by_stop_string(RequestId id) {
  if (!live_.contains(id)) return;
  const int32_t group = placement_.remove(id);
  live_.gone(id, FinishReason::kStop);
  pump(group);
  publish();
}

void EngineCore::request_gone(RequestId id, const LiveRequest& live) {
  if (live.adapter != 0) loads_.adapters().release(live.adapter);
  placement_.gone(id);
  look_at_control();
  intake_.gone(id);
}

void EngineCore::stop() {
  if (std::exchange(stopped_, true)) return;
  const Error error{ErrorCode::kUnavailable, "the engine was stopped", {}};
  intake_.refuse_from_now_on(error);
  placement_.clear_queue();
  live_.end_all(error);
  control_.end(error);
  for (const auto& each : groups_) each->stop("the coordinator was stopped");
  for (int32_t index = 0; index < groups_.size(); ++index) loads_.lost(index, error);
  publish();
}

// Each handler holds the core while it runs: a turn of a group may outlive the engine's owner.
GroupServiceHandlers EngineCore::handlers_of(int32_t index) {
  const std::weak_ptr<EngineCore> weak = weak_from_this();
  const auto guarded = [weak](auto call) {
    return [weak, call](auto&&... arguments) {
      if (const auto self = weak.lock())
        call(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  };
  using Self = EngineCore;
  using Request = std::unique_ptr<Sequence>;
  GroupServiceHandlers handlers;
  handlers.outputs_full = [weak] {
    const auto self = weak.lock();
    return self == nullptr || self->live_.outputs_full();
  };
  handlers.must_prove = [weak] {
    const auto self = weak.lock();
    return self != nullptr && self->placement_.must_prove();
  };
  handlers.pump = guarded([index](Self& self) { self.pump(index); });
  handlers.on_state = guarded(
      [index](Self& self, GroupState state) { self.reports_.state(index, state, self.groups_); });
  handlers.on_progress =
      guarded([](Self& self, const StartProgress& progress) { self.reports_.progress(progress); });
  handlers.on_ready = guarded([index](Self& self) { self.on_ready(index); });
  handlers.on_compiled = guarded([index](Self& self, Request sequence) {
    self.placement_.schedule(index, std::move(sequence));
    self.pump(index);
    self.publish();
  });
  handlers.on_adapter =
      guarded([index](Self& self, int32_t rank, const ipc::AdapterLoaded& answer) {
        self.loads_.answered(index, rank, answer);
      });
  handlers.on_good_canary =
      guarded([index](Self& self, bool proved) { self.on_good_canary(index, proved); });
  handlers.on_no_logit =
      guarded([](Self& self, RequestId id) { self.live_.end_without_logit(id); });
  handlers.on_slow_grammar =
      guarded([](Self& self, RequestId id) { self.live_.end_for_grammar(id); });
  handlers.on_tokens =
      guarded([index](Self& self, const ipc::StepResult& result, const Events& events) {
        self.on_tokens(index, result, events);
      });
  handlers.on_kv_export = guarded([index](Self& self, int32_t rank, const ipc::KvExport& own) {
    self.placement_.exported(index, rank, own);
  });
  handlers.on_handed_over = guarded([index](Self& self, Request sequence) {
    self.pump(self.placement_.hand_over(index, std::move(sequence)));
    self.look_at_control();
  });
  handlers.on_transfer_failed = guarded(
      [](Self& self, Request sequence) { self.placement_.transfer_failed(std::move(sequence)); });
  handlers.on_promised = guarded([index](Self& self, PromisedRequest request) {
    self.placement_.promise(index, std::move(request));
  });
  handlers.on_withdrawn = guarded([](Self& self, RequestId id) { self.placement_.withdraw(id); });
  handlers.on_moved =
      guarded([](Self& self, const MovedBlocks& moved) { self.placement_.moved(moved); });
  handlers.on_transfers = guarded([index](Self& self) {
    self.pump(index);
    self.look_at_control();
    self.publish();
  });
  handlers.on_audit = guarded(
      [index](Self& self, const ipc::StepResult& result) { self.reports_.audit(index, result); });
  handlers.on_loss =
      guarded([index](Self& self, GroupLoss loss) { self.on_loss(index, std::move(loss)); });
  handlers.on_lost = guarded([index](Self& self, GroupServiceHandlers::Lost lost) {
    self.on_lost(index, std::move(lost));
  });
  return handlers;
}

void EngineCore::on_ready(int32_t index) {
  loads_.ask(index);
  if (groups_[index].steps_together()) placement_.step_together();
  placement_.ready(index);
  if (groups_[index].serves()) control_.came(index);
  intake_.admission().in_service(now());
  deadlines_.watch_queue();
  publish();
}

void EngineCore::on_good_canary(int32_t index, bool proved) {
  loads_.settle();
  placement_.good_canary(index, proved);
  if (!proved) return;
  control_.came(index);
  publish();
}

void EngineCore::on_tokens(int32_t index, const ipc::StepResult& result, const Events& events) {
  for (const TokenEvent& event : events) intake_.admission().token(event.id);
  intake_.admission().step(now(), groups_.count_waiting(index));
  live_.deliver(result, events);
  if (std::ranges::any_of(events, [](const auto& e) { return e.stop != StopCause::kNone; }))
    placement_.completed();
  loads_.settle();
}

void EngineCore::give_up_group(int32_t index) {
  if (index < groups_.size() && !groups_[index].failed())
    groups_[index].give_up("restarts",
                           "its workers were lost too often; they are not started again");
}

// One that waits is the loss of every group, as none took it.
void EngineCore::on_loss(int32_t index, GroupLoss loss) {
  const auto had = [&](RequestId id) { return live_.contains(id) && live_.at(id).group == index; };
  if (trace_) trace_->workers_lost(index, loss.reason, now(), had);
  loss.requests = live_.ids_where([index](const LiveRequest& live) {
    return live.group == index || live.group == LiveRequest::kNoGroup;
  });
  reports_.loss(std::move(loss));
}

void EngineCore::on_lost(int32_t index, GroupServiceHandlers::Lost lost) {
  const Error error = lost.error;
  const bool over = lost.for_good && groups_.all_failed();
  lost.alone = rounds_.lost(index, lost.in_flight, lost.for_good);
  groups_.count_waiting(index);
  if (!groups_.any_ready()) intake_.admission().out_of_service(now());
  if (over) intake_.refuse_from_now_on(error);
  const size_t resumed = placement_.lost(index, std::move(lost), over);
  if (const auto role = control_.take_role(index)) placement_.set_role(index, *role);
  stats_.change([resumed](EngineStats& counts) { counts.requests_resumed += resumed; });
  if (over) {
    placement_.clear_queue();
    live_.end_all(error);
  } else {
    for (const auto& each : groups_) each->transfers().check();
    placement_.route_waiting();
    pump_all();
  }
  loads_.lost(index, error);
  look_at_control();
  deadlines_.watch_queue();
  publish();
}

void EngineCore::pump(int32_t index) {
  if (index == LiveRequest::kNoGroup) return pump_all();  // it waited for any of them
  GroupService& service = groups_[index];
  if (!service.ready() || service.state() != GroupState::kReady) return;
  if (placement_.go_on(index)) publish();
  service.set_trial(placement_.on_trial(index));
  rounds_.plan(index);
}

void EngineCore::pump_all() {
  for (int32_t index = 0; index < groups_.size(); ++index) pump(index);
}

void EngineCore::publish() {
  loads_.settle();
  for (const auto& each : groups_) each->publish_changes();
  stats_.change([this](EngineStats& stats) {
    stats.requests_queued = placement_.num_queued();
    stats.kv_link_bytes_per_second = placement_.choice().link().bytes_a_second();
    stats.prompts_not_moved = placement_.choice().kept();
  });
}

EngineStats EngineCore::stats() const { return combine(stats_.snapshot(), groups_.stats()); }

EngineHealth EngineCore::health() const {
  return combine(groups_.health(), stats_.snapshot().requests_queued);
}

}  // namespace refrain
