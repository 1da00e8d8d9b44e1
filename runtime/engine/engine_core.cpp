#include "runtime/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/group_endpoints.h"

namespace refrain {
namespace {

std::vector<ipc::GroupRole> roles_of(const std::vector<Group>& groups) {
  std::vector<ipc::GroupRole> roles;
  roles.reserve(groups.size());
  for (const Group& group : groups) roles.push_back(group.role);
  return roles;
}

std::vector<int32_t> ranks_of(const std::vector<Group>& groups) {
  std::vector<int32_t> ranks;
  ranks.reserve(groups.size());
  for (const Group& group : groups) ranks.push_back(group.num_ranks());
  return ranks;
}

}  // namespace

EngineCore::EngineCore(EngineParts parts)
    : config_(parts.config),
      model_(parts.model),
      rules_(config_, model_),
      executor_(parts.engine_executor),
      parts_(std::move(parts)),
      router_(roles_of(config_.groups()), config_.worker.block_size),
      kv_exchange_(
          config_.groups(),
          [this](int32_t index, const ipc::Message& message) { group(index).tell(message); }),
      control_(config_.num_groups(), to_duration(config_.drain_timeout), executor_,
               control_hooks()),
      trials_(queue_,
              {[this](const Sequence& sequence, const Error& error) { give_up(sequence, error); },
               [this](std::unique_ptr<Sequence> sequence) {
                 sequence->hands_over = false;
                 sequence->source.reset();
                 to_group(trials_.group(), std::move(sequence));
               },
               [this](RequestId id) { alive_.at(id).group = kNoGroup; },
               [this] {
                 open_or_close_all();
                 route_waiting();
               },
               [this](Isolation isolation) {
                 if (isolation_handler) isolation_handler(isolation);
               }}),
      adapters_(ranks_of(config_.groups()), config_.max_cpu_loras),
      admission_({int64_t{config_.worker.max_num_seqs} * config_.num_groups(), config_.max_queue,
                  to_duration(config_.max_queue_wait)}),
      trace_(std::move(parts_.trace)) {}

void EngineCore::connect() {
  for (AdapterSource& source : parts_.adapters) {
    const auto added = adapters_.add(std::move(source), nullptr);
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
  outputs_ = std::make_unique<OutputSide>(
      parts_.output_executors, parts_.tokenizer,
      [on_engine](RequestId id) {
        on_engine([id](EngineCore& core) { core.ended_by_stop_string(id); });
      },
      [on_engine] { on_engine([](EngineCore& core) { core.pump_all(); }); });
  auto endpoints = split_endpoint(std::move(parts_.endpoint), config_.num_groups());
  for (size_t index = 0; index < endpoints.size(); ++index)
    add_group(static_cast<int32_t>(index), std::move(endpoints[index]));
}

void EngineCore::start() {
  for (const auto& each : groups_) each->start();
}

Status EngineCore::accepting() {
  {
    const std::lock_guard lock(refusal_mutex_);
    if (refusal_) return forward_error(*refusal_);
  }
  return admission_.check();
}

Result<RequestId> EngineCore::submit(GenerateRequest request, OutputSink sink) {
  REFRAIN_RETURN_IF_ERROR(check(request));
  RequestId id = 0;
  {
    const std::lock_guard lock(refusal_mutex_);
    if (refusal_) return forward_error(*refusal_);
    REFRAIN_ASSIGN_OR_RETURN(
        id,
        admission_.admit(static_cast<int64_t>(request.prompt.size()), request.sampling.max_tokens,
                         request.max_queue_wait, executor_->clock().now()));
    ++unfinished_;  // under the lock, so that a drain that begins now knows of it
  }
  Accepted accepted{id, std::move(request.prompt), {}, std::nullopt, request.output_thread};
  if (request.timeout) accepted.deadline = executor_->clock().now() + *request.timeout;
  accepted.params = rules_.sequence_params(id, request);
  outputs_->open(request.output_thread, id, static_cast<int64_t>(accepted.prompt.size()),
                 std::move(request.sampling), std::move(sink));
  executor_->post([weak = weak_from_this(), accepted = std::move(accepted)]() mutable {
    if (const auto self = weak.lock()) self->enter(std::move(accepted));
  });
  return id;
}

void EngineCore::enter(Accepted accepted) {
  const RequestId id = accepted.id;
  const AdapterId adapter = accepted.params.adapter;
  const bool has_adapter = adapter == 0 || adapters_.hold(adapter);
  alive_.emplace(id, Live{accepted.params.setup.num_logprobs, digest_of(accepted.prompt),
                          accepted.output_thread, has_adapter ? adapter : 0});
  stats_.change([](EngineStats& stats) { ++stats.requests_total; });
  if (trace_) trace_->accepted(id, accepted.prompt.size(), executor_->clock().now());
  std::optional<Error> refused;
  if (!has_adapter)
    refused = Error{ErrorCode::kNotFound, "the model's LoRA adapter has been unloaded", "model"};
  {
    const std::lock_guard lock(refusal_mutex_);
    if (all_failed() || stopped_) refused = refusal_;
  }
  if (refused) return end(id, FinishReason::kError, std::move(refused));
  if (accepted.deadline) end_at(id, *accepted.deadline);
  route(std::make_unique<Sequence>(id, std::move(accepted.prompt), std::move(accepted.params)));
  if (const auto found = alive_.find(id); found != alive_.end() && found->second.group != kNoGroup)
    pump(found->second.group);
  watch_queue();
  publish();
}

void EngineCore::deliver(const ipc::StepResult& result, const std::vector<TokenEvent>& events) {
  if (events.empty()) return;
  for (const TokenEvent& event : events) {
    const size_t at = event.index;
    TokenArrival arrival{event.id,        {event.token, 0, {}}, event.stop,  event.cached_tokens,
                         event.scheduled, event.prompt,         event.pooled};
    const auto asked = alive_.find(event.id);
    REFRAIN_CHECK(asked != alive_.end(), "a token for request {}, which has ended", event.id);
    asked->second.given.add(event.token);
    if (trace_) trace_->token(event.id, executor_->clock().now());
    if (asked->second.num_logprobs >= 0 && at < result.logprobs.size()) {
      arrival.token.logprob = result.logprobs[at];
      if (at + 1 < result.top_offsets.size())
        for (auto i = static_cast<size_t>(result.top_offsets[at]);
             i < static_cast<size_t>(result.top_offsets[at + 1]); ++i)
          arrival.token.top.push_back({result.top_tokens[i], result.top_logprobs[i]});
    }
    outputs_->add(asked->second.output_thread, std::move(arrival));
    if (event.stop == StopCause::kNone) continue;
    request_gone(event.id, finish_reason(event.stop));
  }
  outputs_->hand_over();
}

void EngineCore::refuse_from_now_on(Error error) {
  const std::lock_guard lock(refusal_mutex_);
  refusal_ = std::move(error);
}

void EngineCore::fail_all(const Error& error) {
  queue_.clear();
  std::vector<RequestId> ids;
  for (const auto& [id, live] : alive_) ids.push_back(id);
  std::ranges::sort(ids);
  for (const RequestId id : ids) end(id, FinishReason::kError, error);
}

void EngineCore::cancel(RequestId id) {
  if (!alive_.contains(id)) return;
  if (const Sequence* sequence = find(id)) trials_.leaves(*sequence);
  remove(id);
  end(id, FinishReason::kAbort, std::nullopt);
  pump_all();
  publish();
}

void EngineCore::ended_by_stop_string(RequestId id) {
  if (!alive_.contains(id)) return;
  remove(id);
  request_gone(id, FinishReason::kStop);
  pump_all();
  publish();
}

// Out of its group, or out of the queue of those who wait.
void EngineCore::remove(RequestId id) {
  const int32_t index = alive_.at(id).group;
  if (index == kNoGroup) return queue_.remove(id);
  group(index).cancel(id);
}

const Sequence* EngineCore::find(RequestId id) const {
  const int32_t index = alive_.at(id).group;
  return index == kNoGroup ? queue_.find(id) : groups_[static_cast<size_t>(index)]->find(id);
}

void EngineCore::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  const auto found = alive_.find(id);
  REFRAIN_CHECK(found != alive_.end(), "request {} ended twice", id);
  outputs_->end(found->second.output_thread, id, reason, std::move(error));
  request_gone(id, reason);
}

void EngineCore::end_at(RequestId id, TimePoint deadline) {
  const Duration left = deadline - executor_->clock().now();
  alive_.at(id).deadline = executor_->post_after(left, [weak = weak_from_this(), id] {
    const auto self = weak.lock();
    if (!self || !self->alive_.contains(id)) return;
    self->remove(id);
    self->end(id, FinishReason::kError,
              Error{ErrorCode::kDeadline, "the request did not finish by its deadline", {}});
    self->pump_all();
    self->publish();
  });
}

void EngineCore::request_gone(RequestId id, FinishReason reason) {
  const auto found = alive_.find(id);
  REFRAIN_CHECK(found != alive_.end(), "request {} ended twice", id);
  if (found->second.deadline != 0) executor_->cancel(found->second.deadline);
  if (found->second.adapter != 0) adapters_.release(found->second.adapter);
  alive_.erase(found);
  router_.gone(id);
  stats_.ended(reason);
  if (trace_) trace_->ended(id, reason, executor_->clock().now());
  --unfinished_;
  admission_.gone(id);
  look_at_control();
  tell_if_drained();
}

// One timer, for the request that has to begin first.
void EngineCore::watch_queue() {
  const auto deadline = admission_.next_deadline();
  if (!deadline || (queue_timer_ && queue_timer_->first <= *deadline)) return;
  if (queue_timer_) executor_->cancel(queue_timer_->second);
  const Duration left = std::max(*deadline - executor_->clock().now(), Duration::zero());
  const TimerId timer = executor_->post_after(left, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->end_overdue();
  });
  queue_timer_ = {*deadline, timer};
}

void EngineCore::end_overdue() {
  queue_timer_.reset();
  for (const RequestId id : admission_.take_overdue(executor_->clock().now())) {
    if (!alive_.contains(id)) continue;
    const Sequence* sequence = find(id);
    if (sequence != nullptr && sequence->admitted_before) {  // it runs, or ran before a loss
      admission_.started(id);
      continue;
    }
    admission_.late();
    remove(id);
    end(id, FinishReason::kError,
        Error{ErrorCode::kUnavailable,
              "the request waited for as long as --max-queue-wait or max_queue_wait allows",
              {}});
  }
  watch_queue();
  publish();
}

void EngineCore::drain(std::function<void()> drained) {
  refuse_from_now_on({ErrorCode::kUnavailable, "the server is shutting down", {}});
  drained_ = std::move(drained);
  tell_if_drained();
}

// unfinished_ counts those accepted and still on their way here, too.
void EngineCore::tell_if_drained() {
  if (unfinished_ == 0 && drained_) std::exchange(drained_, nullptr)();
}

void EngineCore::stop() {
  if (std::exchange(stopped_, true)) return;
  const Error error{ErrorCode::kUnavailable, "the engine was stopped", {}};
  refuse_from_now_on(error);
  fail_all(error);
  control_.end(error);
  for (const auto& each : groups_) each->stop("the coordinator was stopped");
  for (int32_t index = 0; index < config_.num_groups(); ++index) adapters_lost(index, error);
  publish();
}

void EngineCore::publish() {
  if (unloading_) finish_unloads();
  for (const auto& each : groups_) each->publish_counts();
  stats_.change([this](EngineStats& stats) {
    stats.requests_queued = queue_.size();
    stats.kv_link_bytes_per_second = transfer_choice_.link().bytes_a_second();
    stats.prompts_not_moved = transfer_choice_.kept();
  });
}

EngineStats EngineCore::stats() const {
  std::vector<GroupStats> groups;
  for (const auto& each : groups_) groups.push_back(each->stats().snapshot());
  return combine(stats_.snapshot(), std::move(groups));
}

EngineHealth EngineCore::health() const {
  std::vector<EngineHealth> groups;
  for (const auto& each : groups_) groups.push_back(each->stats().health());
  return combine(groups, stats_.snapshot().requests_queued);
}

}  // namespace refrain
