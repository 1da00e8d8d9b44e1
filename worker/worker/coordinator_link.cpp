#include "worker/worker/coordinator_link.h"

#include <utility>

#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

// so many bad frames in such a time end the conversation.
constexpr size_t kMaxBadFrames = 3;
constexpr auto kBadFrameWindow = std::chrono::seconds(10);

}  // namespace

CoordinatorLink::CoordinatorLink(std::unique_ptr<ipc::Endpoint> endpoint, const Clock& clock)
    : endpoint_(std::move(endpoint)), clock_(clock) {}

void CoordinatorLink::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  last_heard_ = clock_.now();
  endpoint_->start(
      [this](const ipc::PeerId&, std::span<const std::byte> frame) { receive(frame); });
}

void CoordinatorLink::send_hello(const ipc::Hello& hello) {
  ipc::encode_frame(hello, {0, 1}, buffer_);
  if (const Status sent = endpoint_->send({}, buffer_); !sent) {
    log::debug("hello not sent: {}", sent.error().message);  // repeated until it is answered
  }
}

void CoordinatorLink::send(const ipc::Message& message) {
  ipc::encode_frame(message, {epoch_, next_sequence_}, buffer_);
  const Status sent = endpoint_->send({}, buffer_);
  if (sent) {
    ++next_sequence_;
  } else if (!std::holds_alternative<ipc::Heartbeat>(message) &&
             !std::holds_alternative<ipc::Position>(message)) {
    handlers_.on_broken(fmt::format("a frame could not be sent: {}", sent.error().message));
  }
}

void CoordinatorLink::receive(std::span<const std::byte> frame) {
  auto decoded = ipc::decode_frame(frame);
  if (!decoded) return bad_frame(decoded.error().message);
  const ipc::FrameInfo& info = decoded->info;
  if (const auto* refuse = std::get_if<ipc::Refuse>(&decoded->message)) {
    return handlers_.on_refuse(refuse->reason);
  }
  if (const auto* welcome = std::get_if<ipc::Welcome>(&decoded->message);
      welcome != nullptr && info.epoch > epoch_ && info.sequence == 1) {
    return begin_epoch(info.epoch, *welcome);
  }
  if (!gate_.accept(info)) {
    ++dropped_;
    if (gate_.gaps() > 0) handlers_.on_broken("frames of the coordinator were lost");
    return;
  }
  last_heard_ = clock_.now();
  // A heartbeat says no more than that it came.
  if (!std::holds_alternative<ipc::Heartbeat>(decoded->message))
    handlers_.on_message(std::move(decoded->message));
}

void CoordinatorLink::begin_epoch(Epoch epoch, const ipc::Welcome& welcome) {
  epoch_ = epoch;
  next_sequence_ = 1;
  gate_ = ipc::FrameGate(epoch);
  gate_.accept({epoch, 1});
  last_heard_ = clock_.now();
  handlers_.on_welcome(epoch, welcome);
}

void CoordinatorLink::bad_frame(const std::string& what) {
  ++dropped_;
  log::warn("bad frame from the coordinator: {}", what);
  const TimePoint now = clock_.now();
  bad_frames_.push_back(now);
  while (now - bad_frames_.front() > kBadFrameWindow) bad_frames_.pop_front();
  if (bad_frames_.size() >= kMaxBadFrames) {
    handlers_.on_broken(
        fmt::format("{} bad frames within 10 s, the last: {}", bad_frames_.size(), what));
  }
}

}  // namespace refrain::worker
