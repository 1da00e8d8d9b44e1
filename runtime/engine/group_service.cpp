#include "runtime/engine/group_service.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/engine/handshake.h"

namespace refrain {
namespace {

SchedulerOptions scheduler_options(const EngineConfig& config, const ModelConfig& model,
                                   const std::vector<ipc::StateGroup>& groups) {
  SchedulerOptions options;
  options.max_num_seqs = config.worker.max_num_seqs;
  options.max_num_batched_tokens = config.worker.max_num_batched_tokens;
  options.max_model_len = config.worker.max_model_len;
  if (!config.worker.pooling.empty()) {
    options.pooled_cols = model.hidden_size;
    ++options.max_model_len;  // of what stands for the vector; no step has it as a token
  }
  options.block_size = config.worker.block_size;
  options.groups = groups;
  options.enable_prefix_caching = config.enable_prefix_caching;
  options.enable_chunked_prefill = config.enable_chunked_prefill;
  options.long_prefill_token_threshold = config.long_prefill_token_threshold;
  options.eos_token_ids = model.eos_token_ids;
  options.audit_rate = config.audit_rate;
  options.max_loras = config.worker.max_loras;
  options.num_drafts = config.worker.num_speculative_tokens;
  options.split_prefill = config.worker.split_prefill;
  if (config.long_prefill_token_threshold > 0)
    options.split_prefill_tokens = config.long_prefill_token_threshold;
  options.draft_model = config.worker.draft_model;
  options.num_ranks = config.worker.tensor_parallel_size;
  options.transfer_timeout = to_duration(config.kv_transfer_timeout);
  options.draft_head = config.worker.draft_head != ipc::DraftHead::kNone;
  return options;
}

}  // namespace

GroupService::GroupService(Parts parts, GroupServiceHandlers handlers)
    : config_(parts.config),
      model_(parts.model),
      executor_(parts.executor),
      handlers_(std::move(handlers)),
      parts_(std::move(parts)),
      pace_(config_.worker.max_num_batched_tokens),
      stats_(executor_->clock(), parts_.group.identity.group,
             config_.groups().at(static_cast<size_t>(parts_.group.identity.group)).role),
      trace_(parts_.trace) {}

void GroupService::connect() {
  // Each handler holds the service while it runs: a turn of the group may outlive the engine's
  // owner.
  const auto guarded = [weak = weak_from_this()](auto call) {
    return [weak, call](auto&&... arguments) {
      if (const auto self = weak.lock())
        call(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  };
  using Self = GroupService;
  WorkerGroupHandlers handlers;
  handlers.on_state = guarded([](Self& self, GroupState state, const std::string&) {
    self.publish_group();
    self.handlers_.on_state(state);
  });
  handlers.on_progress = guarded([](Self& self, const StartProgress& progress) {
    self.publish_group();
    self.handlers_.on_progress(progress);
  });
  handlers.on_ready = guarded(
      [](Self& self, const std::vector<ipc::StateGroup>& groups) { self.on_ready(groups); });
  handlers.on_grammar_ready = guarded([](Self& self, RequestId id) { self.on_grammar_ready(id); });
  handlers.on_adapter = guarded([](Self& self, int32_t rank, const ipc::AdapterLoaded& answer) {
    if (self.scheduler_) self.handlers_.on_adapter(rank, answer);
  });
  handlers.on_kv_export = guarded([](Self& self, int32_t rank, const ipc::KvExport& own) {
    self.handlers_.on_kv_export(rank, own);
  });
  handlers.on_pulled = guarded(
      [](Self& self, int32_t rank, const ipc::Pulled& report) { self.on_pulled(rank, report); });
  handlers.on_step =
      guarded([](Self& self, ipc::StepResult result) { self.on_step(std::move(result)); });
  handlers.on_device_progress = guarded([](Self& self) { self.stats_.progressed(self.now()); });
  handlers.on_loss =
      guarded([](Self& self, GroupLoss loss) { self.handlers_.on_loss(std::move(loss)); });
  handlers.on_lost =
      guarded([](Self& self, const Error& error, bool for_good) { self.on_lost(error, for_good); });
  group_ = std::make_shared<WorkerGroup>(std::move(parts_.group), std::move(parts_.endpoint),
                                         executor_, std::move(parts_.watch), std::move(parts_.kill),
                                         std::move(handlers));
}

void GroupService::stop(const std::string& reason) {
  executor_->cancel(idle_timer_);
  if (scheduler_) release_all();
  scheduler_.reset();
  group_->stop(reason);
  publish_counts();
}

void GroupService::restart() {
  restarting_ = true;
  group_->restart();
}

void GroupService::set_role(ipc::GroupRole role, const ipc::WorkerConfig& worker) {
  config_.worker = worker;
  group_->set_role(role, worker);
  stats_.change([role](GroupStats& stats) { stats.role = role; });
}

void GroupService::set_held(bool held) {
  stats_.change([held](GroupStats& stats) { stats.held = held; });
}

Status GroupService::add(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  if (sequence->params.setup.grammar.empty()) return schedule(std::move(sequence), given);
  gate_.add(std::move(sequence));
  return {};
}

Status GroupService::schedule(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  return scheduler_->add(std::move(sequence), given);
}

void GroupService::on_grammar_ready(RequestId id) {
  if (auto sequence = gate_.compiled(id, config_.worker.tensor_parallel_size))
    handlers_.on_compiled(std::move(sequence));
}

const Sequence* GroupService::find(RequestId id) const {
  if (const Sequence* held = gate_.find(id)) return held;
  return ready() ? scheduler_->find(id) : nullptr;
}

void GroupService::cancel(RequestId id) {
  if (scheduler_) scheduler_->cancel(id);
  gate_.remove(id);
  if (scheduler_) send_orders();
}

std::vector<std::unique_ptr<Sequence>> GroupService::release_all() {
  auto requests = scheduler_->release_all();
  for (auto& sequence : gate_.release_all()) requests.push_back(std::move(sequence));
  return requests;
}

void GroupService::adapter_loaded(AdapterId id) {
  if (scheduler_) scheduler_->adapter_loaded(id);
}

void GroupService::adapter_unloaded(AdapterId id) {
  if (!scheduler_) return;
  scheduler_->adapter_unloaded(id);
  tell(ipc::UnloadAdapter{id});
}

void GroupService::plan() {
  if (!scheduler_ || group_->state() != GroupState::kReady) return;
  for (ipc::Grammar& grammar : gate_.take_unsent()) tell(std::move(grammar));
  plan_steps(config_.async_scheduling && !trial_ ? 2 : 1);
  send_orders();
}

void GroupService::plan_steps(size_t depth) {
  while (scheduler_->steps_in_flight() < depth) {
    if (handlers_.outputs_full() || too_early_to_plan()) return;
    scheduler_->limit_chunks(pace_.prompt_tokens());
    const StepPlan* plan = scheduler_->schedule(now());
    if (plan == nullptr) return;
    crowded_ = scheduler_->stats().waiting > 0;
    pace_.sent(plan->step(), now());
    if (trace_) {
      trace_->sent(stats_.group(), plan->step(), now(), [this](RequestId id) {
        const Sequence* sequence = scheduler_->find(id);
        return sequence != nullptr && sequence->state == SequenceState::kRunning;
      });
    }
    group_->send_step(plan->message);
  }
}

// A step that is planned late holds the requests that came meanwhile. Where the last step left
// requests waiting, one that comes now would wait behind them whenever the step is planned.
bool GroupService::too_early_to_plan() {
  const auto at = pace_.plan_at(to_duration(config_.schedule_lead_ms / 1e3));
  if (!at || crowded_) return false;
  const Duration left = *at - now();
  if (left <= Duration::zero()) return false;
  if (plan_timer_ && plan_timer_->first == *at) return true;
  if (plan_timer_) executor_->cancel(plan_timer_->second);
  const TimerId timer = executor_->post_after(left, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->plan_timer_.reset();
    self->handlers_.pump();
  });
  plan_timer_ = {*at, timer};
  return true;
}

// Block tables, prefix cache and slots begin empty, as the new workers' memory does.
void GroupService::on_ready(const std::vector<ipc::StateGroup>& groups) {
  if (const auto changed = recaptured_otherwise(stats_.snapshot().ready, group_->ready()))
    log::warn("{}", *changed);
  scheduler_ = std::make_unique<Scheduler>(scheduler_options(config_, model_, groups));
  for (const ipc::StateGroup& group : groups) {
    if (!config_.has_roles() || group.kind == ipc::StateKind::kPaged) continue;
    give_up("start",
            fmt::format("the model keeps a state of each request ({}), which does not move "
                        "between groups: serve it without --prefill-groups",
                        group.name));
  }
  // Whether these workers are good decides who is to blame for the losses before.
  proving_ = group_->distrusted() || handlers_.must_prove();
  last_answer_ = now();
  stats_.answered(last_answer_);
  handlers_.on_ready();
  // The group is ready when this handler has returned.
  executor_->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->scheduler_) return;
    if (self->proving_) self->send_canary();
    self->handlers_.pump();
  });
  watch_idle();
  publish_counts();
}

void GroupService::on_step(ipc::StepResult result) {
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
  last_answer_ = now();
  scheduler_->took(seconds_of(pace_.done(last_answer_)));
  if (trace_) trace_->answered(stats_.group(), result, last_answer_);
  if (result.audit.audited) {
    stats_.audited(result.audit);
    handlers_.on_audit(result);
  }
  stats_.answered(last_answer_);
  ++num_answers_;
  const std::optional<bool> canary = take_canary();
  const bool goes_on = canary.value_or(true);  // else the group is lost in a turn of its own
  if (canary && goes_on) {
    group_->trust();
    handlers_.on_good_canary(std::exchange(proving_, false));
  }
  if (!goes_on) group_->distrust();
  take_rows_without_logit();
  // A trial is judged by what its client has.
  const bool trial = trial_ && !canary;
  if (!trial && goes_on) handlers_.pump();
  if (canary && events_.empty()) return publish_counts();
  stats_.step_done(result, config_.worker.pooling.empty() ? events_.size() : 0);
  handlers_.on_tokens(result, events_);
  if (trial) handlers_.pump();
  settle_transfers();
  publish_counts();
  stats_.add_step_cpu(thread_cpu_us() - cpu_before);
}

void GroupService::on_lost(const Error& error, bool for_good) {
  executor_->cancel(idle_timer_);
  GroupServiceHandlers::Lost lost{error, for_good, ready(), false, {}};
  if (scheduler_) {
    lost.alone = scheduler_->requests_in_flight() == 1;
    lost.requests = take_back();
  }
  if (std::exchange(restarting_, false)) {
    lost.alone = false;
    for (const auto& sequence : lost.requests) sequence->forgive_loss();
  }
  failed_ = for_good;
  handlers_.on_lost(std::move(lost));
  publish_counts();
}

// Steps without an answer are computed again, and what the lost workers still say of them is of an
// old epoch.
std::vector<std::unique_ptr<Sequence>> GroupService::take_back() {
  const SchedulerStats stats = scheduler_->stats();
  past_.preemptions += stats.preemptions;
  past_.cascade_steps += stats.cascade_steps;
  past_.drafts = past_.drafts + stats.drafts;
  past_.transfers = past_.transfers + stats.transfers;
  past_.transfers.running = past_.transfers.quarantined = 0;
  past_.leases_expired += stats.leases_expired;
  past_.prompt_tokens += stats.prompt_tokens;
  past_.cached_prompt_tokens += stats.cached_prompt_tokens;
  auto requests = release_all();
  std::erase_if(requests, [](const auto& sequence) { return sequence->id == kCanaryRequest; });
  scheduler_.reset();
  pace_.clear();
  canary_out_ = proving_ = trial_ = false;
  return requests;
}

void GroupService::publish_counts() {
  const SchedulerStats counts = scheduler_ ? scheduler_->stats() : SchedulerStats{};
  const Sequence* canary = find(kCanaryRequest);
  const bool canary_runs = canary != nullptr && canary->state == SequenceState::kRunning;
  const bool canary_waits = canary != nullptr && !canary_runs;
  stats_.change([&](GroupStats& stats) {
    stats.requests_running = counts.running - (canary_runs ? 1 : 0);
    stats.requests_waiting = counts.waiting + gate_.size() - (canary_waits ? 1 : 0);
    stats.prompt_tokens = past_.prompt_tokens + counts.prompt_tokens;
    stats.cached_prompt_tokens = past_.cached_prompt_tokens + counts.cached_prompt_tokens;
    stats.preemptions = past_.preemptions + counts.preemptions;
    stats.cascade_steps = past_.cascade_steps + counts.cascade_steps;
    stats.drafts = past_.drafts + counts.drafts;
    stats.leases = counts.leases;
    stats.leases_expired = past_.leases_expired + counts.leases_expired;
    stats.transfers = past_.transfers + counts.transfers;
    stats.blocks_total = static_cast<uint64_t>(counts.blocks_total);
    stats.blocks_free = static_cast<uint64_t>(counts.blocks_free);
  });
}

void GroupService::publish_group() {
  stats_.change([this](GroupStats& stats) {
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
