#include "runtime/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain {
namespace {

Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

WorkerGroupOptions group_options(EngineParts& parts) {
  const EngineConfig& config = parts.config;
  WorkerGroupOptions options;
  options.identity = {config.worker.tensor_parallel_size, parts.build_id, parts.model_digest};
  options.worker = config.worker;
  options.process = parts.process;
  options.token_prefix = parts.token_prefix;
  options.first_epoch = parts.first_epoch;
  options.heartbeat_interval = to_duration(config.heartbeat_interval);
  options.heartbeat_timeout = to_duration(config.heartbeat_timeout);
  options.start_timeout = to_duration(config.start_timeout);
  return options;
}

}  // namespace

EngineCore::EngineCore(EngineParts parts)
    : config_(parts.config),
      model_(parts.model),
      depth_(config_.async_scheduling ? 2 : 1),
      executor_(parts.engine_executor),
      parts_(std::move(parts)),
      pace_(config_.worker.max_num_batched_tokens),
      admission_(
          {config_.worker.max_num_seqs, config_.max_queue, to_duration(config_.max_queue_wait)}),
      stats_(executor_->clock()) {}

void EngineCore::connect() {
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
      [on_engine] { on_engine([](EngineCore& core) { core.pump(); }); });
  // Each handler holds the core while it runs: a turn of the group may outlive the engine's owner.
  const auto guarded = [weak](auto call) {
    return [weak, call](auto&&... arguments) {
      if (const auto self = weak.lock())
        call(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  };
  WorkerGroupHandlers handlers;
  handlers.on_state = guarded([](EngineCore& core, GroupState state, const std::string& detail) {
    core.publish_group();
    if (core.state_handler) core.state_handler(state, detail);
  });
  handlers.on_progress = guarded([](EngineCore& core, const StartProgress& progress) {
    core.publish_group();
    if (core.progress_handler) core.progress_handler(progress);
  });
  handlers.on_ready =
      guarded([](EngineCore& core, int64_t num_kv_blocks) { core.on_ready(num_kv_blocks); });
  handlers.on_step =
      guarded([](EngineCore& core, ipc::StepResult result) { core.on_step(std::move(result)); });
  handlers.on_device_progress =
      guarded([](EngineCore& core) { core.stats_.progressed(core.executor_->clock().now()); });
  handlers.on_loss =
      guarded([](EngineCore& core, GroupLoss loss) { core.tell_of_loss(std::move(loss)); });
  handlers.on_lost = guarded(
      [](EngineCore& core, const Error& error, bool for_good) { core.on_lost(error, for_good); });
  group_ = std::make_shared<WorkerGroup>(group_options(parts_), std::move(parts_.endpoint),
                                         executor_, std::move(parts_.watch), std::move(parts_.kill),
                                         std::move(handlers));
}

void EngineCore::start() { group_->start(); }

void EngineCore::enter(Accepted accepted) {
  const RequestId id = accepted.id;
  alive_.emplace(id, Live{accepted.params.setup.num_logprobs, digest_of(accepted.prompt),
                          accepted.output_thread});
  stats_.change([](EngineStats& stats) { ++stats.requests_total; });
  std::optional<Error> refused;
  {
    const std::lock_guard lock(refusal_mutex_);
    if (group_->state() == GroupState::kFailed || stopped_) refused = refusal_;
  }
  if (refused) return end(id, FinishReason::kError, std::move(refused));
  if (accepted.deadline) end_at(id, *accepted.deadline);
  auto sequence =
      std::make_unique<Sequence>(id, std::move(accepted.prompt), std::move(accepted.params));
  if (scheduler_ && !trials_.on && !proving_) {
    to_scheduler(std::move(sequence));
    pump();
  } else {
    queue_.push_back(std::move(sequence));
  }
  watch_queue();
  publish_counts();
}

void EngineCore::to_scheduler(std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  if (const Status added = scheduler_->add(std::move(sequence), alive_.at(id).given); !added)
    end(id, FinishReason::kError, added.error());
}

void EngineCore::queue_to_scheduler() {
  for (auto& sequence : std::exchange(queue_, {})) to_scheduler(std::move(sequence));
}

// Keeps the pipeline full: step n+1 goes out while step n runs, shortly before its end. Of a
// request on trial one step runs at a time.
void EngineCore::pump() {
  if (!scheduler_ || group_->state() != GroupState::kReady) return;
  if (trials_.on && !proving_) go_on_with_trials();
  while (scheduler_->steps_in_flight() < (trials_.on ? 1 : depth_)) {
    if (outputs_->full() || too_early_to_plan()) return;
    scheduler_->limit_chunks(pace_.prompt_tokens());
    const StepPlan* plan = scheduler_->schedule();
    if (plan == nullptr) return;
    crowded_ = scheduler_->stats().waiting > 0;
    pace_.sent(plan->step(), executor_->clock().now());
    group_->send_step(plan->message);
  }
}

// A step that is planned late holds the requests that came meanwhile. Where the last step left
// requests waiting, one that comes now would wait behind them whenever the step is planned.
bool EngineCore::too_early_to_plan() {
  const auto at = pace_.plan_at(to_duration(config_.schedule_lead_ms / 1e3));
  if (!at || crowded_) return false;
  const Duration left = *at - executor_->clock().now();
  if (left <= Duration::zero()) return false;
  if (plan_timer_ && plan_timer_->first == *at) return true;
  if (plan_timer_) executor_->cancel(plan_timer_->second);
  const TimerId timer = executor_->post_after(left, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->plan_timer_.reset();
    self->pump();
  });
  plan_timer_ = {*at, timer};
  return true;
}

void EngineCore::on_step(ipc::StepResult result) {
  const double cpu_before = thread_cpu_us();
  const auto vocabulary = static_cast<TokenId>(model_.vocab_size);
  events_.clear();
  Status updated;
  if (std::ranges::any_of(result.tokens, [&](TokenId token) { return token >= vocabulary; })) {
    updated = fail(ErrorCode::kInternal, "a token of step {} is outside the vocabulary of {}",
                   result.step, vocabulary);
  } else {
    updated = scheduler_->update(result, events_);
  }
  if (!updated)
    return group_->fence("answers", 0, fmt::format("rank 0: {}", updated.error().message));
  last_answer_ = executor_->clock().now();
  pace_.done(last_answer_);
  if (result.audit.audited) note_audit(result);
  stats_.answered(last_answer_);
  ++num_answers_;
  const std::optional<bool> canary = take_canary();
  const bool goes_on = canary.value_or(true);  // else the group is lost in a turn of its own
  if (canary && goes_on) on_good_canary();
  if (!goes_on) group_->distrust();
  end_rows_without_logit();
  // A trial is judged by what its client has.
  const bool trial = trials_.on && !canary;
  if (!trial && goes_on) pump();
  if (canary && events_.empty()) return publish_counts();
  stats_.step_done(result, events_.size());
  for (const TokenEvent& event : events_) admission_.token(event.id);
  admission_.step(executor_->clock().now(), scheduler_->stats().waiting);
  deliver(result, events_);
  note_completed();
  if (trial) pump();
  publish_counts();
  stats_.add_step_cpu(thread_cpu_us() - cpu_before);
}

void EngineCore::deliver(const ipc::StepResult& result, const std::vector<TokenEvent>& events) {
  if (events.empty()) return;
  for (const TokenEvent& event : events) {
    const auto row = static_cast<size_t>(event.row);
    TokenArrival arrival{event.id, {event.token, 0, {}}, event.stop, event.cached_tokens};
    const auto asked = alive_.find(event.id);
    REFRAIN_CHECK(asked != alive_.end(), "a token for request {}, which has ended", event.id);
    asked->second.given.add(event.token);
    if (asked->second.num_logprobs >= 0 && row < result.logprobs.size()) {
      arrival.token.logprob = result.logprobs[row];
      if (row + 1 < result.top_offsets.size())
        for (auto i = static_cast<size_t>(result.top_offsets[row]);
             i < static_cast<size_t>(result.top_offsets[row + 1]); ++i)
          arrival.token.top.push_back({result.top_tokens[i], result.top_logprobs[i]});
    }
    outputs_->add(asked->second.output_thread, std::move(arrival));
    if (event.stop == StopCause::kNone) continue;
    request_gone(event.id, finish_reason(event.stop));
  }
  outputs_->hand_over();
}

void EngineCore::tell_of_loss(GroupLoss loss) {
  if (!loss_handler) return;
  for (const auto& [id, logprobs] : alive_) loss.requests.push_back(id);
  std::ranges::sort(loss.requests);
  loss.num_requests = loss.requests.size();
  if (loss.requests.size() > GroupLoss::kMaxRequests) loss.requests.resize(GroupLoss::kMaxRequests);
  loss_handler(loss);
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
  blame_for_losses(id);
  remove(id);
  end(id, FinishReason::kAbort, std::nullopt);
  pump();
  publish_counts();
}

void EngineCore::ended_by_stop_string(RequestId id) {
  if (!alive_.contains(id)) return;
  remove(id);
  request_gone(id, FinishReason::kStop);
  pump();
  publish_counts();
}

// Out of the scheduler, or out of the queue of those who wait for workers.
void EngineCore::remove(RequestId id) {
  if (scheduler_) scheduler_->cancel(id);
  std::erase_if(queue_, [id](const auto& sequence) { return sequence->id == id; });
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
    self->pump();
    self->publish_counts();
  });
}

void EngineCore::request_gone(RequestId id, FinishReason reason) {
  const auto found = alive_.find(id);
  REFRAIN_CHECK(found != alive_.end(), "request {} ended twice", id);
  if (found->second.deadline != 0) executor_->cancel(found->second.deadline);
  alive_.erase(found);
  stats_.ended(reason);
  --unfinished_;
  admission_.gone(id);
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

bool EngineCore::started(RequestId id) const {
  if (const Sequence* sequence = scheduler_ ? scheduler_->find(id) : nullptr)
    return sequence->admitted_before;
  return std::ranges::any_of(queue_, [id](const auto& sequence) {
    return sequence->id == id && sequence->admitted_before;
  });
}

void EngineCore::end_overdue() {
  queue_timer_.reset();
  for (const RequestId id : admission_.take_overdue(executor_->clock().now())) {
    if (!alive_.contains(id)) continue;
    if (started(id)) {
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
  publish_counts();
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
  const Error error{ErrorCode::kUnavailable, "the server was stopped", {}};
  refuse_from_now_on(error);
  if (scheduler_) scheduler_->release_all();
  scheduler_.reset();
  fail_all(error);
  group_->stop("the coordinator was stopped");
  publish_counts();
}

void EngineCore::publish_counts() {
  const SchedulerStats now = scheduler_ ? scheduler_->stats() : SchedulerStats{};
  const Sequence* canary = scheduler_ ? scheduler_->find(kCanaryRequest) : nullptr;
  const bool canary_runs = canary != nullptr && canary->state == SequenceState::kRunning;
  const bool canary_waits = canary != nullptr && !canary_runs;
  stats_.change([&](EngineStats& stats) {
    stats.requests_running = now.running - (canary_runs ? 1 : 0);
    stats.requests_waiting = now.waiting + queue_.size() - (canary_waits ? 1 : 0);
    stats.prompt_tokens = past_.prompt_tokens + now.prompt_tokens;
    stats.cached_prompt_tokens = past_.cached_prompt_tokens + now.cached_prompt_tokens;
    stats.preemptions = past_.preemptions + now.preemptions;
    stats.blocks_total = static_cast<uint64_t>(now.blocks_total);
    stats.blocks_free = static_cast<uint64_t>(now.blocks_free);
  });
}

void EngineCore::publish_group() {
  stats_.change([this](EngineStats& stats) {
    stats.state = group_->state();
    stats.state_detail = group_->detail();
    stats.epoch = group_->epoch();
    stats.group_restarts = group_->restarts();
    if (stats.state == GroupState::kReady) {
      stats.ready = group_->ready();
      stats.devices = group_->devices();
    }
  });
}

}  // namespace refrain
