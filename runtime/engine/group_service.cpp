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
  options.replicas = config.num_groups();
  options.audit_rate = config.audit_rate;
  options.max_loras = config.worker.max_loras;
  options.num_drafts = config.worker.num_speculative_tokens;
  options.split_prefill = config.worker.split_prefill;
  if (config.long_prefill_token_threshold > 0)
    options.split_prefill_tokens = config.long_prefill_token_threshold;
  options.draft_model = config.worker.draft_model;
  options.num_ranks = config.worker.tensor_parallel_size;
  options.transfer_timeout = to_duration(config.kv_transfer_timeout);
  options.publish_layers = config.worker.publish_layers;
  options.draft_head = config.worker.draft_head != ipc::DraftHead::kNone;
  return options;
}

// Why requests of this model cannot go from one group to another.
std::optional<std::string> state_that_stays(const std::vector<ipc::StateGroup>& groups) {
  for (const ipc::StateGroup& group : groups) {
    if (group.kind != ipc::StateKind::kPaged)
      return fmt::format(
          "the model keeps a state of each request ({}), which does not move between groups: serve "
          "it without --prefill-groups",
          group.name);
  }
  return std::nullopt;
}

Status check_tokens(const ipc::StepResult& result, int64_t vocab_size) {
  const auto vocabulary = static_cast<TokenId>(vocab_size);
  if (std::ranges::any_of(result.tokens, [&](TokenId token) { return token >= vocabulary; }))
    return fail(ErrorCode::kInternal, "a token of step {} is outside the vocabulary of {}",
                result.step, vocabulary);
  return {};
}

}  // namespace

GroupService::GroupService(Parts parts, GroupServiceHandlers handlers)
    : config_(parts.config),
      model_(parts.model),
      executor_(parts.executor),
      handlers_(std::move(handlers)),
      parts_(std::move(parts)),
      pace_(config_.worker.max_num_batched_tokens),
      plan_timer_(*executor_, pace_, to_duration(config_.schedule_lead_ms / 1e3),
                  [this] { handlers_.pump(); }),
      canary_(*executor_, [this] { handlers_.pump(); }),
      transfers_(
          scheduler_, handlers_, *executor_, to_duration(config_.kv_transfer_timeout),
          {parts_.group.identity.group, [this] { return epoch(); },
           [this](const ipc::Message& message) { tell(message); }, [this] { changed_ = true; }}),
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
  plan_timer_.connect(run_later(executor_, weak_from_this()));
  canary_.connect(run_later(executor_, weak_from_this()));
  transfers_.connect(run_later(executor_, weak_from_this()));
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
  handlers.on_pulled = guarded([](Self& self, int32_t rank, const ipc::Pulled& report) {
    self.transfers_.pulled(rank, report);
  });
  handlers.on_step =
      guarded([](Self& self, const ipc::StepResult& result) { self.on_step(result); });
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
  canary_.end();
  if (scheduler_) release_all();
  scheduler_.reset();
  group_->stop(reason);
  publish_counts();
}

void GroupService::restart(std::string reason, bool blameless) {
  blameless_ = blameless;
  group_->restart(std::move(reason));
}

void GroupService::change_role(ipc::GroupRole role, std::string reason) {
  blameless_ = true;
  group_->change_role(role, std::move(reason));
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
  changed_ = true;
  if (sequence->params.setup.grammar.empty()) return schedule(std::move(sequence), given);
  gate_.add(std::move(sequence));
  return {};
}

Status GroupService::schedule(std::unique_ptr<Sequence> sequence, const TokenDigest& given) {
  changed_ = true;
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
  changed_ = true;
  if (scheduler_) scheduler_->cancel(id);
  gate_.remove(id);
  transfers_.send_orders();
}

std::vector<std::unique_ptr<Sequence>> GroupService::release_all() {
  changed_ = true;
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

bool GroupService::takes_step() {
  const size_t depth = config_.async_scheduling && !trial_ ? 2 : 1;
  const bool now = scheduler_->steps_in_flight() < depth && !handlers_.outputs_full();
  if (!now || plan_timer_.too_early()) return false;
  scheduler_->limit_chunks({pace_.prompt_tokens(), pace_.long_prompt_tokens()});
  return true;
}

void GroupService::send_grammars() {
  for (ipc::Grammar& grammar : gate_.take_unsent()) tell(std::move(grammar));
}

void GroupService::send(const StepPlan& plan) {
  changed_ = true;
  plan_timer_.planned(waiting() > 0);
  pace_.sent(plan.step(), now());
  if (trace_) {
    trace_->sent(stats_.group(), plan.step(), now(), [this](RequestId id) {
      const Sequence* sequence = scheduler_->find(id);
      return sequence != nullptr && sequence->state == SequenceState::kRunning;
    });
  }
  group_->send_step(plan.message);
  transfers_.tell_promised();
}

// Block tables, prefix cache and slots begin empty.
void GroupService::on_ready(const std::vector<ipc::StateGroup>& groups) {
  const std::vector<ipc::Ready> ready = group_->ready();
  if (const auto changed = recaptured_otherwise(stats_.snapshot().ready, ready))
    log::warn("{}", *changed);
  SchedulerOptions options = scheduler_options(config_, model_, groups);
  options.row_tile = ready.front().row_tile;
  scheduler_ = std::make_unique<Scheduler>(std::move(options));
  scheduler_->when_given_back([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
  if (auto stays = state_that_stays(groups); stays && config_.has_roles())
    give_up("start", std::move(*stays));
  // Whether these workers are good decides who is to blame for the losses before.
  proving_ = group_->distrusted() || handlers_.must_prove();
  stats_.answered(now());
  handlers_.on_ready();
  // The group is ready when this handler has returned.
  executor_->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->scheduler_) return;
    if (self->proving_) self->canary_.send();
    self->handlers_.pump();
  });
  canary_.begin(*scheduler_);
  publish_counts();
}

// In a turn of its own: a reader has let go of blocks, which are free when its turn has ended.
void GroupService::wake() {
  if (std::exchange(wakes_, true)) return;
  executor_->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->wakes_ = false;
    self->transfers_.tell_ended();
  });
}

void GroupService::on_step(const ipc::StepResult& result) {
  const double cpu_before = thread_cpu_us();
  events_.clear();
  Status updated = check_tokens(result, model_.vocab_size);
  if (updated) updated = scheduler_->update(result, events_);
  if (!updated)
    return group_->fence("answers", 0, fmt::format("rank 0: {}", updated.error().message));
  const TimePoint answered = now();
  scheduler_->took(seconds_of(pace_.done(answered)));
  if (trace_) trace_->answered(stats_.group(), result, answered);
  if (result.audit.audited) {
    stats_.audited(result.audit);
    handlers_.on_audit(result);
  }
  stats_.answered(answered);
  canary_.answered(answered);
  const std::optional<bool> canary = canary_.take(events_);
  const bool goes_on = canary.value_or(true);  // else the group is lost in a turn of its own
  if (canary && goes_on) {
    group_->trust();
    handlers_.on_good_canary(std::exchange(proving_, false));
  }
  if (!goes_on) group_->distrust();
  const std::vector<RequestId> without_logit = take_rows_without_logit();
  // A trial is judged by what its client has.
  const bool trial = trial_ && !canary;
  if (!trial && goes_on) handlers_.pump();
  if (canary && events_.empty() && without_logit.empty()) return publish_counts();
  stats_.step_done(result, config_.worker.pooling.empty() ? events_.size() : 0);
  handlers_.on_tokens(result, events_);
  for (const RequestId id : without_logit) handlers_.on_no_logit(id);
  if (trial) handlers_.pump();
  transfers_.settle();
  publish_counts();
  stats_.add_step_cpu(thread_cpu_us() - cpu_before);
}

// Each ends its own request, behind the tokens that drafts gave it in the same step; only when this
// goes on the workers are tested.
std::vector<RequestId> GroupService::take_rows_without_logit() {
  bool goes_on = false;
  std::vector<RequestId> ids;
  std::erase_if(events_, [&](const TokenEvent& event) {
    if (event.stop == StopCause::kGrammar) handlers_.on_slow_grammar(event.id);
    if (event.stop != StopCause::kNoLogit) return event.stop == StopCause::kGrammar;
    ids.push_back(event.id);
    goes_on |= canary_.no_logit();
    return true;
  });
  if (!goes_on || trial_) return ids;
  log::warn("{} requests had no finite logit within {} steps: a canary decides",
            LogitFailures::kRequests, LogitFailures::kSteps);
  canary_.send();
  return ids;
}

void GroupService::on_lost(const Error& error, bool for_good) {
  canary_.end();
  GroupServiceHandlers::Lost lost{error, for_good, ready(), 0, false, {}};
  if (scheduler_) {
    lost.in_flight = scheduler_->requests_in_flight();
    lost.requests = take_back();
  }
  if (std::exchange(blameless_, false)) {
    lost.in_flight = 0;
    for (const auto& sequence : lost.requests) sequence->forgive_loss();
  }
  failed_ = for_good;
  handlers_.on_lost(std::move(lost));
  publish_counts();
}

// Steps without an answer are computed again, and what the lost workers still say of them is of an
// old epoch.
std::vector<std::unique_ptr<Sequence>> GroupService::take_back() {
  counts_.add(scheduler_->stats());
  auto requests = release_all();
  std::erase_if(requests, [](const auto& sequence) { return sequence->id == kCanaryRequest; });
  scheduler_.reset();
  pace_.clear();
  proving_ = trial_ = false;
  return requests;
}

void GroupService::publish_changes() {
  if (changed_) publish_counts();
}

void GroupService::publish_counts() {
  changed_ = false;
  const SchedulerStats counts = scheduler_ ? scheduler_->stats() : SchedulerStats{};
  const Sequence* canary = find(kCanaryRequest);
  stats_.change([&](GroupStats& stats) { counts_.fill(counts, gate_.size(), canary, stats); });
}

void GroupService::publish_group() {
  stats_.change([this](GroupStats& stats) { group_->fill(stats); });
}

}  // namespace refrain
