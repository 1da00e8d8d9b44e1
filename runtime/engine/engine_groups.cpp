// The part of EngineCore between requests and groups: which group takes a request, and what becomes
// of those of a group that is lost. They go on in another one at once, or wait for the next workers
//

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"

namespace refrain {
namespace {

// A request whose blocks did not come so often is computed in one group.
constexpr int32_t kTransfersTried = 2;

WorkerGroupOptions group_options(const EngineParts& parts, const Group& group) {
  const EngineConfig& config = parts.config;
  const int32_t groups = config.num_groups(), index = group.id;
  WorkerGroupOptions options;
  options.identity = {group.num_ranks(), parts.build_id, parts.model_digest, index, groups};
  if (config.has_roles()) options.identity.role = ipc::to_string(group.role);
  options.worker = config.worker_of(group);
  options.process = parts.process;
  // Names of the same epoch of two groups differ.
  options.token_prefix =
      groups == 1 ? parts.token_prefix : fmt::format("{}-g{}", parts.token_prefix, index);
  options.first_epoch = parts.first_epoch;
  options.heartbeat_interval = to_duration(config.heartbeat_interval);
  options.heartbeat_timeout = to_duration(config.heartbeat_timeout);
  options.start_timeout = to_duration(config.start_timeout);
  return options;
}

}  // namespace

void EngineCore::add_group(int32_t index, std::unique_ptr<ipc::Endpoint> endpoint) {
  const Group group = config_.groups().at(static_cast<size_t>(index));
  EngineConfig config = config_;
  config.worker = config_.worker_of(group);
  GroupService::Parts parts{config,
                            model_,
                            group_options(parts_, group),
                            executor_,
                            std::move(endpoint),
                            parts_.watch,
                            parts_.kill,
                            trace_};
  groups_.push_back(std::make_shared<GroupService>(std::move(parts), handlers_of(index)));
  groups_.back()->connect();
}

// Each handler holds the core while it runs: a turn of a group may outlive the engine's owner.
GroupServiceHandlers EngineCore::handlers_of(int32_t index) {
  const auto guarded = [weak = weak_from_this()](auto call) {
    return [weak, call](auto&&... arguments) {
      if (const auto self = weak.lock())
        call(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  };
  using Self = EngineCore;
  GroupServiceHandlers handlers;
  handlers.outputs_full = [weak = weak_from_this()] {
    const auto self = weak.lock();
    return self == nullptr || self->outputs_->full();
  };
  handlers.must_prove = [weak = weak_from_this()] {
    const auto self = weak.lock();
    return self != nullptr && self->trials_.must_prove();
  };
  handlers.pump = guarded([index](Self& self) { self.pump(index); });
  handlers.on_state =
      guarded([index](Self& self, GroupState state) { self.on_group_state(index, state); });
  handlers.on_progress = guarded([](Self& self, const StartProgress& progress) {
    if (self.progress_handler) self.progress_handler(progress);
  });
  handlers.on_ready = guarded([index](Self& self) { self.on_ready(index); });
  handlers.on_compiled = guarded([index](Self& self, std::unique_ptr<Sequence> sequence) {
    self.on_compiled(index, std::move(sequence));
  });
  handlers.on_adapter =
      guarded([index](Self& self, int32_t rank, const ipc::AdapterLoaded& answer) {
        self.on_adapter(index, rank, answer);
      });
  handlers.on_good_canary =
      guarded([index](Self& self, bool proved) { self.on_good_canary(index, proved); });
  handlers.on_no_logit = guarded([](Self& self, RequestId id) { self.on_no_logit(id); });
  handlers.on_slow_grammar = guarded([](Self& self, RequestId id) { self.on_slow_grammar(id); });
  handlers.on_tokens =
      guarded([](Self& self, const ipc::StepResult& result, const std::vector<TokenEvent>& events) {
        self.on_tokens(result, events);
      });
  handlers.on_kv_export = guarded([index](Self& self, int32_t rank, const ipc::KvExport& own) {
    self.kv_exchange_.exported(index, self.group(index).epoch(), rank, own);
  });
  handlers.on_handed_over = guarded([index](Self& self, std::unique_ptr<Sequence> sequence) {
    self.on_handed_over(index, std::move(sequence));
  });
  handlers.on_transfer_failed = guarded([](Self& self, std::unique_ptr<Sequence> sequence) {
    self.on_transfer_failed(std::move(sequence));
  });
  handlers.on_moved =
      guarded([](Self& self, const MovedBlocks& moved) { self.transfer_choice_.moved(moved); });
  handlers.on_transfers = guarded([](Self& self) {
    self.pump_all();
    self.look_at_control();
    self.publish();
  });
  handlers.on_audit =
      guarded([index](Self& self, const ipc::StepResult& result) { self.on_audit(index, result); });
  handlers.on_loss =
      guarded([index](Self& self, GroupLoss loss) { self.tell_of_loss(index, std::move(loss)); });
  handlers.on_lost = guarded([index](Self& self, GroupServiceHandlers::Lost lost) {
    self.on_lost(index, std::move(lost));
  });
  return handlers;
}

bool EngineCore::any_ready() const {
  return std::ranges::any_of(groups_, [](const auto& each) { return each->ready(); });
}

bool EngineCore::all_failed() const {
  return std::ranges::all_of(groups_, [](const auto& each) { return each->failed(); });
}

// A group takes requests while it serves and none is tried alone there.
void EngineCore::open_or_close(int32_t index) {
  const bool open = group(index).serves() && !trials_.reserves(index) && !control_.holds(index);
  if (open == router_.is_open(index)) return;
  if (open) {
    router_.open(index);
  } else {
    router_.close(index);
  }
}

void EngineCore::open_or_close_all() {
  for (int32_t index = 0; index < config_.num_groups(); ++index) open_or_close(index);
}

// Whether the request can go on in another group from its blocks alone, and it pays to try.
bool EngineCore::may_hand_over(const Sequence& sequence) const {
  const ipc::SlotSetup& setup = sequence.params.setup;
  const bool counts_output = setup.presence_penalty != 0.0f || setup.frequency_penalty != 0.0f;
  // A penalty counts tokens that rows bring.
  const bool counts_all =
      setup.repetition_penalty != 1.0f || (counts_output && sequence.output_len() > 0);
  return !counts_all && sequence.failed_transfers < kTransfersTried &&
         sequence.params.max_tokens - sequence.output_len() > 1;
}

void EngineCore::route(std::unique_ptr<Sequence> sequence) {
  const SequenceParams& params = sequence->params;
  sequence->source.reset();
  sequence->hands_over = router_.divides() && may_hand_over(*sequence) && transfer_pays(*sequence);
  const auto index =
      router_.place(sequence->id, sequence->tokens, {params.cache_salt, params.adapter},
                    params.max_tokens - sequence->output_len(),
                    sequence->hands_over ? Router::Part::kPrompt : Router::Part::kAll);
  if (!index) return queue_.add(std::move(sequence));
  to_group(*index, std::move(sequence));
}

void EngineCore::route_waiting() {
  if (!router_.any_open()) return;
  for (auto& sequence : queue_.take_all()) {
    if (trials_.on() && sequence->suspect()) {
      queue_.add(std::move(sequence));
    } else {
      route(std::move(sequence));
    }
  }
}

void EngineCore::to_group(int32_t index, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  Live& live = alive_.at(id);
  live.group = index;
  if (const Status added = group(index).add(std::move(sequence), live.given); !added)
    end(id, FinishReason::kError, added.error());
}

// Its first token is told, its blocks are under a lease. With no decode group it goes on as any
// request does.
void EngineCore::on_handed_over(int32_t index, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  const SequenceParams& params = sequence->params;
  router_.gone(id);
  alive_.at(id).group = kNoGroup;
  const auto to = router_.place(id, sequence->tokens, {params.cache_salt, params.adapter},
                                params.max_tokens - sequence->output_len(), Router::Part::kAnswer);
  if (!to) {
    route(std::move(sequence));
    look_at_control();
    return pump_all();
  }
  if (!kv_exchange_.joined(index, *to)) sequence->source.reset();
  to_group(*to, std::move(sequence));
  pump(*to);
  look_at_control();
}

void EngineCore::on_transfer_failed(std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  router_.gone(id);
  alive_.at(id).group = kNoGroup;
  route(std::move(sequence));
}

void EngineCore::on_compiled(int32_t index, std::unique_ptr<Sequence> sequence) {
  const RequestId id = sequence->id;
  if (const Status added = group(index).schedule(std::move(sequence), alive_.at(id).given); !added)
    end(id, FinishReason::kError, added.error());
  pump(index);
  publish();
}

void EngineCore::pump(int32_t index) {
  GroupService& service = group(index);
  if (!service.ready() || service.state() != GroupState::kReady) return;
  if (trials_.reserves(index) && !service.proving()) {
    trials_.go_on(service);
    if (!trials_.on()) {  // what waited for them has gone to all groups
      for (int32_t other = 0; other < config_.num_groups(); ++other)
        if (other != index) group(other).plan();
    }
    publish();
  }
  service.set_trial(trials_.reserves(index));
  service.plan();
}

void EngineCore::pump_all() {
  for (int32_t index = 0; index < config_.num_groups(); ++index) pump(index);
}

void EngineCore::on_group_state(int32_t index, GroupState state) {
  const std::string detail = group(index).detail();
  if (group_state_handler) group_state_handler(index, state, detail);
  std::vector<GroupState> states;
  for (const auto& each : groups_) states.push_back(each->state());
  const GroupState best = best_of(states);
  if (best == std::exchange(state_, best) && groups_.size() > 1) return;
  if (state_handler) state_handler(best, detail);
}

void EngineCore::on_ready(int32_t index) {
  ask_for_adapters(index);
  if (group(index).proving()) trials_.proving(index);
  if (group(index).serves()) control_.came(index);
  open_or_close(index);
  route_waiting();
  admission_.in_service(executor_->clock().now());
  watch_queue();
  publish();
}

void EngineCore::on_good_canary(int32_t index, bool proved) {
  trials_.good_canary(index, proved);
  if (unloading_) finish_unloads();
  if (!proved) return;
  control_.came(index);
  open_or_close(index);
  route_waiting();
  publish();
}

void EngineCore::on_tokens(const ipc::StepResult& result, const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) admission_.token(event.id);
  admission_.step(executor_->clock().now(), waiting());
  deliver(result, events);
  if (std::ranges::any_of(events, [](const auto& e) { return e.stop != StopCause::kNone; }))
    trials_.completed();
  if (unloading_) finish_unloads();
}

uint64_t EngineCore::waiting() const {
  uint64_t sum = 0;
  for (const auto& each : groups_)
    if (each->ready()) sum += each->waiting();
  return sum;
}

void EngineCore::on_no_logit(RequestId id) {
  const uint64_t tokens = alive_.at(id).given.count();
  log::error("request {} has no finite logit after {} tokens; it is ended", id, tokens);
  end(id, FinishReason::kError,
      Error{ErrorCode::kInternal,
            fmt::format("the model gave no finite logit for this request after {} tokens (NaN in "
                        "what it computed, or every token forbidden); the request is ended",
                        tokens),
            {}});
  stats_.change([](EngineStats& stats) { ++stats.requests_without_logit; });
}

void EngineCore::on_slow_grammar(RequestId id) {
  const uint64_t tokens = alive_.at(id).given.count();
  log::error("request {}: its grammar is too slow after {} tokens; it is ended", id, tokens);
  end(id, FinishReason::kError,
      Error{ErrorCode::kInvalidArgument,
            fmt::format("the grammar of this answer cannot be followed in time: after {} tokens, "
                        "those of the prompt included, it takes too long to say what may come; "
                        "give a simpler one",
                        tokens),
            kSlowGrammarField});
  stats_.change([](EngineStats& stats) { ++stats.requests_with_slow_grammar; });
}

// What the ranks' audits of a step came to (CG-41): the run goes on, as a difference says that
// numbers are wrong, not that they will be.
void EngineCore::on_audit(int32_t index, const ipc::StepResult& result) {
  const ipc::AuditResult& audit = result.audit;
  if (audit.differences == 0) return;
  log::error("audit of step {}: {} differences, the first: {}", result.step, audit.differences,
             audit.first);
  if (audits_told_ == Engine::kMaxAuditRecords) return;
  ++audits_told_;
  if (audit_handler) audit_handler({result.step, audit.differences, audit.first, index});
}

void EngineCore::give_up_group(int32_t index) {
  if (index < config_.num_groups() && !group(index).failed())
    group(index).give_up("restarts", "its workers were lost too often; they are not started again");
}

// One that waits is the loss of every group, as none took it.
void EngineCore::tell_of_loss(int32_t index, GroupLoss loss) {
  const auto had = [&](RequestId id) {
    const auto live = alive_.find(id);
    return live != alive_.end() && live->second.group == index;
  };
  if (trace_) trace_->workers_lost(index, loss.reason, executor_->clock().now(), had);
  if (!loss_handler) return;
  for (const auto& [id, live] : alive_)
    if (live.group == index || live.group == kNoGroup) loss.requests.push_back(id);
  std::ranges::sort(loss.requests);
  loss.num_requests = loss.requests.size();
  if (loss.requests.size() > GroupLoss::kMaxRequests) loss.requests.resize(GroupLoss::kMaxRequests);
  loss_handler(loss);
}

void EngineCore::on_lost(int32_t index, GroupServiceHandlers::Lost lost) {
  const Error error = lost.error;
  const bool over = lost.for_good && all_failed();
  if (!any_ready()) admission_.out_of_service(executor_->clock().now());
  if (over) refuse_from_now_on(error);
  kv_exchange_.lost(index);
  if (const auto role = control_.take_role(index)) change_role(index, *role);
  if (lost.served) take_back(index, std::move(lost));
  if (group(index).failed() && trials_.reserves(index) && !over) {
    const auto left =
        std::ranges::find_if(groups_, [](const auto& each) { return !each->failed(); });
    trials_.move_to(static_cast<int32_t>(left - groups_.begin()));
  }
  open_or_close_all();
  if (over) {
    fail_all(error);
  } else {
    for (const auto& each : groups_) each->check_transfers();
    route_waiting();
    pump_all();
  }
  adapters_lost(index, error);
  look_at_control();
  watch_queue();
  publish();
}

// What ran goes on with the tokens it has.
void EngineCore::take_back(int32_t index, GroupServiceHandlers::Lost lost) {
  std::vector<RequestId> ran;
  for (const auto& sequence : lost.requests) {
    router_.gone(sequence->id);
    alive_.at(sequence->id).group = kNoGroup;
    if (sequence->admitted_before) ran.push_back(sequence->id);
  }
  trials_.took_back(std::move(lost.requests), lost.alone, lost.error);
  const auto resumed =
      std::ranges::count_if(ran, [this](RequestId id) { return alive_.contains(id); });
  trials_.isolate(index, lost.error);
  stats_.change([resumed](EngineStats& counts) {
    counts.requests_resumed += static_cast<uint64_t>(resumed);
  });
  if (queue_.size() == 0) return;
  log::info("{} requests wait for {}, {} of them go on where they were", queue_.size(),
            any_ready() ? "a group" : "the next workers", resumed);
}

void EngineCore::give_up(const Sequence& sequence, const Error& error) {
  end(sequence.id, FinishReason::kError,
      Error{ErrorCode::kUnavailable,
            fmt::format("the request was running when its workers were lost, {} times; it is not "
                        "tried again. The last time: {}",
                        sequence.group_losses, error.message),
            {}});
}

}  // namespace refrain
