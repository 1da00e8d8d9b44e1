#include "runtime/front/front_door.h"

#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace refrain::front {
namespace {

constexpr size_t kMostBatchBytes = size_t{8} << 20;  // then it goes out in parts

size_t bytes_of(const TokenArrival& arrival) {
  size_t bytes = 64 + arrival.token.top.size() * sizeof(TokenLogprob);
  if (arrival.prompt != nullptr)
    bytes += 12 * arrival.prompt->logprobs.size() + 8 * arrival.prompt->top_tokens.size();
  if (arrival.pooled != nullptr) bytes += sizeof(float) * arrival.pooled->size();
  return bytes;
}

}  // namespace

// Requests' output threads are the front's ids of them.
class FrontDoor::Outputs final : public OutputSide {
 public:
  explicit Outputs(std::shared_ptr<FrontDoor> door) : door_(std::move(door)) {}
  void open(size_t thread, RequestId id, int64_t /*prompt_tokens*/, SamplingParams /*sampling*/,
            OutputSink /*sink*/) override {
    door_->ids_[thread] = id;  // on the executor, where the door submits
  }
  void add(size_t thread, TokenArrival arrival) override { door_->add(thread, std::move(arrival)); }
  void hand_over() override { door_->hand_over(); }
  void end(size_t thread, RequestId id, FinishReason reason, std::optional<Error> error) override {
    door_->end(thread, id, reason, std::move(error));
  }
  bool full() override { return door_->full(); }

 private:
  std::shared_ptr<FrontDoor> door_;
};

FrontDoor::FrontDoor(Parts parts)
    : executor_(std::move(parts.executor)),
      link_(std::move(parts.endpoint)),
      watch_(std::move(parts.watch)),
      hello_{std::move(parts.build_id), parts.incarnation, 0, std::move(parts.process)} {}

MakeOutputs FrontDoor::outputs() {
  return [self = shared_from_this()](std::function<void(RequestId)> stopped,
                                     std::function<void()> caught_up) {
    self->stopped_ = std::move(stopped);
    self->caught_up_ = std::move(caught_up);
    return std::make_unique<Outputs>(self);
  };
}

void FrontDoor::start(Engine& engine) {
  engine_ = &engine;
  run_later_ = run_later(executor_, weak_from_this());
  link_.start([weak = weak_from_this()](const ipc::PeerId&, std::span<const std::byte> frame) {
    if (const auto self = weak.lock()) self->on_frame(frame);
  });
  hello();
  look();
}

// One that is sent while no front is there reaches the next.
void FrontDoor::hello() {
  greeting_ = link_.session() == 0;
  if (!greeting_) return;
  if (const Status sent = link_.send({}, hello_); !sent)
    log::debug("the front takes no greeting: {}", sent.error().message);
  run_later_(kHelloPause, [this] { hello(); });
}

void FrontDoor::look() {
  tell_state();
  run_later_(kStatePause, [this] { look(); });
}

void FrontDoor::tell_state() {
  if (engine_ != nullptr && link_.session() != 0) send(State{engine_->health()});
}

void FrontDoor::on_frame(std::span<const std::byte> frame) {
  auto message = link_.take(frame);
  if (!message) return lose_session(message.error().message);
  if (!*message) return;
  if (const auto* welcome = std::get_if<Welcome>(&**message)) return begin(*welcome);
  std::visit([this](const auto& alternative) { on(alternative); }, **message);
}

void FrontDoor::begin(const Welcome& welcome) {
  if (welcome.session == link_.session()) return;
  end_requests();
  link_.begin(welcome.session);
  hello_.last_session = welcome.session;
  if (!(welcome.process == front_)) {
    front_ = welcome.process;
    watch_(front_, [weak = weak_from_this(), front = front_] {
      const auto self = weak.lock();
      if (self != nullptr && self->front_ == front) self->lose_session("its process has ended");
    });
  }
  log::info("a front is there (pid {})", front_.pid);
  tell_state();
}

void FrontDoor::lose_session(const std::string& why) {
  if (link_.session() == 0) return;
  if (ids_.empty()) {
    log::info("the front is gone: {}", why);  // as at every end of a server
  } else {
    log::warn("the front is lost with {} requests: {}", ids_.size(), why);
  }
  link_.begin(0);
  end_requests();
  if (!greeting_) hello();
}

// The engine's canary and what else it has of its own goes on.
void FrontDoor::end_requests() {
  for (const auto& [front_id, id] : std::exchange(ids_, {})) engine_->cancel(id);
  batch_.arrivals.clear();
  batch_bytes_ = 0;
  untaken_ = 0;
  if (std::exchange(engine_waits_, false)) caught_up_();
}

bool FrontDoor::send(const Message& message) {
  if (link_.session() == 0) return false;
  const Status sent = link_.send({}, message);
  if (!sent && sent.error().code != ErrorCode::kTooLarge)
    executor_->post([weak = weak_from_this(), why = sent.error().message] {
      if (const auto self = weak.lock()) self->lose_session(why);
    });
  return sent.has_value();
}

template <class Unexpected>
void FrontDoor::on(const Unexpected& /*message*/) {
  lose_session(fmt::format("it sent a {}", message_name(Message(Unexpected{}).index())));
}

void FrontDoor::on(const Submit& submit) {
  GenerateRequest request = submit.request;
  request.output_thread = submit.id;
  std::optional<Error> refused;
  if (!submit.adapter.empty()) {
    const auto adapter = engine_->find_adapter(submit.adapter);
    if (!adapter)
      refused = Error{ErrorCode::kNotFound, "the model's LoRA adapter has been unloaded", "model"};
    request.adapter = adapter.value_or(0);
  }
  if (!refused) {
    const auto id = engine_->submit(std::move(request), nullptr);
    if (id) return;
    refused = id.error();
  }
  send(Ended{submit.id, FinishReason::kError, std::move(refused)});
}

void FrontDoor::on(const Cancel& cancel) {
  const auto at = ids_.find(cancel.id);
  if (at == ids_.end()) return;
  const RequestId id = at->second;
  ids_.erase(at);
  cancel.stopped ? stopped_(id) : engine_->cancel(id);
}

void FrontDoor::on(const Taken& taken) {
  untaken_ -= static_cast<int>(taken.batches);
  if (untaken_ < OutputSide::kMostBatches && std::exchange(engine_waits_, false)) caught_up_();
}

void FrontDoor::on(const AskStats& ask) {
  const bool sent = send(Stats{ask.ticket, engine_->stats(), engine_->admission().late});
  if (!sent) log::warn("the engine's statistics do not reach the front");
}

std::function<void(const Status&)> FrontDoor::answer_to(uint64_t ticket) {
  return [weak = weak_from_this(), ticket, session = link_.session()](const Status& status) {
    const auto self = weak.lock();
    if (self == nullptr || self->link_.session() != session) return;
    Answer answer{ticket, std::nullopt};
    if (!status) answer.error = status.error();
    self->send(answer);
  };
}

void FrontDoor::on(const LoadAdapter& load) {
  const auto answer = answer_to(load.ticket);
  for (const AdapterSource& there : engine_->adapters())  // a front before loaded it
    if (there.name == load.source.name && there.digest == load.source.digest) return answer({});
  engine_->load_adapter(load.source, answer);
}
void FrontDoor::on(const UnloadAdapter& unload) {
  engine_->unload_adapter(unload.name, answer_to(unload.ticket));
}
void FrontDoor::on(const OrderGroup& order) {
  engine_->control_group(order.order, answer_to(order.ticket));
}

// A request that was submitted in another session had another id.
bool FrontDoor::has(RequestId front_id, RequestId id) const {
  const auto at = ids_.find(front_id);
  return at != ids_.end() && at->second == id;
}

void FrontDoor::add(RequestId front_id, TokenArrival arrival) {
  if (!has(front_id, arrival.id)) return;
  if (arrival.stop != StopCause::kNone) ids_.erase(front_id);
  arrival.id = front_id;
  batch_bytes_ += bytes_of(arrival);
  batch_.arrivals.push_back(std::move(arrival));
  if (batch_bytes_ >= kMostBatchBytes) hand_over();
}

void FrontDoor::hand_over() {
  if (batch_.arrivals.empty()) return;
  ++untaken_;
  Message message = std::move(batch_);
  batch_ = {};
  batch_.arrivals.reserve(std::get<Tokens>(message).arrivals.size());
  batch_bytes_ = 0;
  send(message);
}

void FrontDoor::end(RequestId front_id, RequestId id, FinishReason reason,
                    std::optional<Error> error) {
  if (!has(front_id, id)) return;
  ids_.erase(front_id);
  send(Ended{front_id, reason, std::move(error)});
}

bool FrontDoor::full() {
  engine_waits_ = untaken_ >= OutputSide::kMostBatches;
  return engine_waits_;
}

}  // namespace refrain::front
