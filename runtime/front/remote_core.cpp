#include "runtime/front/remote_core.h"

#include <utility>

#include "runtime/base/log.h"

namespace refrain::front {
namespace {

constexpr uint32_t kTellTaken = 8;  // batches, of OutputSide::kMostBatches

Error no_coordinator() {
  return {ErrorCode::kUnavailable, "there is no coordinator now; try again later", {}};
}

}  // namespace

RemoteCore::RemoteCore(RemoteEngineParts parts)
    : config_(std::move(parts.config)),
      model_(std::move(parts.model)),
      executor_(std::move(parts.executor)),
      make_outputs_(std::move(parts.outputs)),
      link_(std::move(parts.endpoint)),
      watch_(std::move(parts.watch)),
      process_(std::move(parts.process)),
      build_id_(std::move(parts.build_id)),
      intake_(config_, model_),
      adapters_(std::move(parts.adapters), static_cast<size_t>(config_.max_cpu_loras),
                {[this](AdapterId id, const AdapterSource& source) {
                   send(LoadAdapter{orders_.add([this, id](const Status& status) {
                                      adapters_.load_answered(id, status);
                                    }),
                                    source});
                 },
                 [this](AdapterId id, const std::string& name) {
                   send(UnloadAdapter{orders_.add([this, id](const Status& status) {
                                        adapters_.unload_answered(id, status);
                                      }),
                                      name});
                 },
                 [this](AdapterId) { submit_all(); },
                 [this](AdapterId adapter, const Error& error) {
                   for (const RequestId id : ledger_.ids())
                     if (ledger_.find(id)->request.adapter == adapter)
                       end(id, FinishReason::kError, error);
                 }}),
      next_session_(parts.first_session) {
  mirror_.lose("no coordinator yet");
}

void RemoteCore::connect() {
  const std::weak_ptr<RemoteCore> weak = weak_from_this();
  run_later_ = run_later(executor_, weak);
  // Output executors tell it by posting to it.
  const auto here = [weak](auto call) {
    const auto self = weak.lock();
    if (!self) return;
    self->executor_->post([weak, call] {
      if (const auto core = weak.lock()) call(*core);
    });
  };
  outputs_ = make_outputs_(
      [here](RequestId id) { here([id](RemoteCore& core) { core.stopped_by_string(id); }); },
      [here] { here([](RemoteCore& core) { core.took(true); }); });
}

void RemoteCore::start() {
  link_.start([weak = weak_from_this()](const ipc::PeerId& from, std::span<const std::byte> frame) {
    if (const auto self = weak.lock()) self->on_frame(from, frame);
  });
  look();
}

AdmissionStats RemoteCore::admission() const {
  AdmissionStats stats = intake_.stats();
  stats.late += mirror_.late();
  return stats;
}

// ---- requests

Result<RequestId> RemoteCore::submit(GenerateRequest request, OutputSink sink) {
  LedgerEntry entry;
  entry.came = now();
  REFRAIN_ASSIGN_OR_RETURN(const RequestId id, intake_.accept(request, entry.came));
  if (!request.sampling.seed) request.sampling.seed = derived_seed(config_.worker.seed, id);
  outputs_->open(request.output_thread, id, static_cast<int64_t>(request.prompt.size()),
                 request.sampling, std::move(sink));
  entry.request = std::move(request);
  executor_->post([weak = weak_from_this(), id, entry = std::move(entry)]() mutable {
    if (const auto self = weak.lock()) self->enter(id, std::move(entry));
  });
  return id;
}

void RemoteCore::enter(RequestId id, LedgerEntry entry) {
  const AdapterId adapter = entry.request.adapter;
  if (adapter != 0 && !adapters_.hold(adapter)) {
    outputs_->end(
        entry.request.output_thread, id, FinishReason::kError,
        Error{ErrorCode::kNotFound, "the model's LoRA adapter has been unloaded", "model"});
    return intake_.gone(id);
  }
  entry.adapter = adapters_.name_of(adapter);
  ledger_.add(id, std::move(entry));
  mirror_.set_requests(ledger_.size());
  if (stopped_) return end(id, FinishReason::kError, intake_.refusal());
  submit_to_coordinator(id, *ledger_.find(id));
}

void RemoteCore::submit_to_coordinator(RequestId id, LedgerEntry& entry) {
  const AdapterId adapter = entry.request.adapter;
  if (!present_ || broken_ || entry.sent || (adapter != 0 && !adapters_.usable(adapter))) return;
  if (send(RequestLedger::submission(id, entry, now())) || broken_) return;
  end(id, FinishReason::kError,
      Error{ErrorCode::kTooLarge, "the request is too large to be handed on", {}});
}

// The oldest first.
void RemoteCore::submit_all() {
  for (const RequestId id : ledger_.ids())
    if (LedgerEntry* entry = ledger_.find(id)) submit_to_coordinator(id, *entry);
}

void RemoteCore::cancel(RequestId id) {
  const LedgerEntry* entry = ledger_.find(id);
  if (entry == nullptr) return;
  if (entry->sent) send(Cancel{id, false});
  end(id, FinishReason::kAbort, std::nullopt);
}

void RemoteCore::stopped_by_string(RequestId id) {
  const LedgerEntry* entry = ledger_.find(id);
  if (entry == nullptr) return;
  if (entry->sent) send(Cancel{id, true});
  gone(id);
}

void RemoteCore::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  outputs_->end(ledger_.find(id)->request.output_thread, id, reason, std::move(error));
  gone(id);
}

void RemoteCore::gone(RequestId id) {
  const AdapterId adapter = ledger_.find(id)->request.adapter;
  ledger_.remove(id);
  mirror_.set_requests(ledger_.size());
  if (adapter != 0) adapters_.release(adapter);
  intake_.gone(id);
}

void RemoteCore::stop() {
  if (std::exchange(stopped_, true)) return;
  const Error error{ErrorCode::kUnavailable, "the engine was stopped", {}};
  intake_.refuse_from_now_on(error);
  for (const RequestId id : ledger_.ids()) end(id, FinishReason::kError, error);
  adapters_.lost();
  end_orders();
}

// ---- the coordinator

void RemoteCore::on_frame(const ipc::PeerId& from, std::span<const std::byte> frame) {
  auto message = link_.take(frame);
  if (!message) {
    if (from == peer_) session_broke(message.error().message);
    return;
  }
  if (!*message) return;
  if (const auto* hello = std::get_if<Hello>(&**message)) return greeted(from, *hello);
  std::visit([this](auto& alternative) { on(alternative); }, **message);
}

void RemoteCore::greeted(const ipc::PeerId& from, const Hello& hello) {
  if (hello.build_id != build_id_) {
    log::error("a coordinator of another build ({}) is not taken; this is {}", hello.build_id,
               build_id_);
    return;
  }
  const bool same = hello.incarnation == coordinator_.incarnation;
  if (same && !present_) return;                              // a word of one that is dead
  if (same && hello.last_session != link_.session()) return;  // sent before it was welcome
  if (!same && present_) lose_coordinator("another one is there");
  peer_ = from;
  coordinator_ = hello;
  present_ = true;
  if (!same)
    watch_(hello.process, [weak = weak_from_this(), incarnation = hello.incarnation] {
      const auto self = weak.lock();
      if (self != nullptr && self->coordinator_.incarnation == incarnation && self->present_)
        self->lose_coordinator("its process has ended");
    });
  begin_session();
}

void RemoteCore::begin_session() {
  link_.begin(next_session_++);
  broken_ = false;
  owed_ = 0;
  adapters_.lost();
  end_orders();
  ledger_.begin_session();
  if (!send(Welcome{link_.session(), process_})) return;
  if (ledger_.size() > 0) log::info("{} requests go on with the coordinator", ledger_.size());
  submit_all();
}

// What it sent before its end still counts, until the next one is there.
void RemoteCore::lose_coordinator(const std::string& why) {
  present_ = broken_ = false;
  log::warn("the coordinator is lost: {}; {} requests wait for the next one", why, ledger_.size());
  for (const RequestId id : ledger_.lose_coordinator())
    end(id, FinishReason::kError,
        Error{ErrorCode::kInternal,
              fmt::format("the request was in flight when {} coordinators ended, one after the "
                          "other; it may be the cause, and is not tried again",
                          RequestLedger::kMostDeaths),
              {}});
  intake_.admission().out_of_service(now());
  adapters_.lost();
  end_orders();
  mirror_.lose("the coordinator was lost; the next one is being started");
  mirror_.set_requests(ledger_.size());
  set_state(GroupState::kWaiting, "the coordinator was lost");
  if (!looks_) look();
}

// Frames were lost between two that live: all is said again.
void RemoteCore::session_broke(const std::string& why) {
  if (!present_ || std::exchange(broken_, true)) return;
  log::error("the session with the coordinator is broken and begins anew: {}", why);
  run_later_(kLook, [this] {
    if (present_ && broken_) begin_session();
  });
}

// While there is no coordinator, times pass here.
void RemoteCore::look() {
  looks_ = !present_ && !stopped_;
  if (!looks_) return;
  const auto overdue = ledger_.overdue(now(), to_duration(config_.max_queue_wait));
  for (const RequestId id : overdue.late)
    end(id, FinishReason::kError,
        Error{ErrorCode::kDeadline, "the request did not finish by its deadline", {}});
  for (const RequestId id : overdue.unheard) {
    intake_.admission().late();
    end(id, FinishReason::kError,
        Error{ErrorCode::kUnavailable,
              "the request waited for as long as --max-queue-wait or max_queue_wait allows",
              {}});
  }
  run_later_(kLook, [this] { look(); });
}

bool RemoteCore::send(const Message& message) {
  if (!present_ || broken_) return false;
  const Status sent = link_.send(peer_, message);
  if (sent) return true;
  if (sent.error().code != ErrorCode::kTooLarge) session_broke(sent.error().message);
  return false;
}

// ---- what it says

void RemoteCore::on(Tokens& tokens) {
  Admission& admission = intake_.admission();
  for (TokenArrival& arrival : tokens.arrivals) {
    LedgerEntry* entry = ledger_.find(arrival.id);
    if (entry == nullptr) continue;  // it has left
    entry->given.push_back(arrival.token.token);
    entry->cached_tokens = arrival.cached_tokens;
    const RequestId id = arrival.id;
    const bool last = arrival.stop != StopCause::kNone;
    admission.token(id);
    outputs_->add(entry->request.output_thread, std::move(arrival));
    if (last) gone(id);
  }
  admission.step(now(), requests_waiting_);
  outputs_->hand_over();
  ++owed_;
  took(false);
}

// Where texts lag behind it is told when they have caught up.
void RemoteCore::took(bool all) {
  if (owed_ == 0 || outputs_->full() || (!all && owed_ < kTellTaken)) return;
  send(Taken{std::exchange(owed_, 0)});
}

void RemoteCore::on(Ended& ended) {
  if (ledger_.find(ended.id) != nullptr) end(ended.id, ended.reason, std::move(ended.error));
}

void RemoteCore::on(State& state) {
  mirror_.tell(state.health, now());
  requests_waiting_ = state.health.requests_waiting;
  const bool ready = state.health.state == GroupState::kReady;
  if (ready) adapters_.ready();
  if (ready != (state_ == GroupState::kReady)) {
    if (ready) {
      intake_.admission().in_service(now());
    } else {
      intake_.admission().out_of_service(now());
    }
  }
  set_state(state.health.state, state.health.state_detail);
}

void RemoteCore::set_state(GroupState state, const std::string& detail) {
  if (std::exchange(state_, state) != state && state_handler) state_handler(state, detail);
}

void RemoteCore::on(Stats& stats) {
  mirror_.tell(stats.stats, stats.late);
  asked_.answer(stats.ticket, stats.stats, admission());
}

// One that does not answer is told of as it last was.
void RemoteCore::ask_stats(const Engine::StatsDone& done) {
  const uint64_t ticket = asked_.add(done);
  const auto as_last = [this, ticket] { asked_.answer(ticket, stats(), admission()); };
  if (!send(AskStats{ticket})) return as_last();
  run_later_(kStatsLimit, as_last);
}

void RemoteCore::on(Answer& answer) {
  orders_.answer(answer.ticket,
                 answer.error ? Status(forward_error(std::move(*answer.error))) : Status());
}

// Adapters have heard of it by themselves: they know no such ticket any more.
void RemoteCore::end_orders() {
  orders_.answer_all(forward_error(no_coordinator()));
  asked_.answer_all(stats(), admission());
}

void RemoteCore::control_group(const GroupOrder& given, const GroupOrderDone& done) {
  if (!present_) return done(forward_error(no_coordinator()));
  send(OrderGroup{orders_.add(done), given});
}

template <class Unexpected>
void RemoteCore::on(Unexpected& /*message*/) {
  session_broke(fmt::format("it sent a {}", message_name(Message(Unexpected{}).index())));
}

}  // namespace refrain::front
