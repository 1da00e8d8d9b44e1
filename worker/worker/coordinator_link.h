#pragma once
// The worker's end of the conversation with its coordinator: frames and their epochs and sequence
// numbers (messages.h, Hello), and what to do about bad ones. Lives on the control executor.

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/messages.h"
#include "ipc/transport/endpoint.h"
#include "runtime/base/clock.h"

namespace refrain::worker {

class CoordinatorLink {
 public:
  struct Handlers {
    std::function<void(Epoch, const ipc::Welcome&)> on_welcome;  // of a new epoch
    std::function<void(const std::string& reason)> on_refuse;
    std::function<void(ipc::Message)> on_message;              // of the present epoch
    std::function<void(const std::string& reason)> on_broken;  // frames lost or garbled
  };

  CoordinatorLink(std::unique_ptr<ipc::Endpoint> endpoint, const Clock& clock);

  void start(Handlers handlers);
  void send_hello(const ipc::Hello& hello);
  // In the present epoch. What cannot be sent breaks the link, heartbeats and positions excepted.
  void send(const ipc::Message& message);
  Epoch epoch() const { return epoch_; }
  TimePoint last_heard() const { return last_heard_; }
  uint64_t dropped() const { return dropped_; }
  void close() { endpoint_->close(); }

 private:
  void receive(std::span<const std::byte> frame);
  void begin_epoch(Epoch epoch, const ipc::Welcome& welcome);
  void bad_frame(const std::string& what);

  std::unique_ptr<ipc::Endpoint> endpoint_;
  const Clock& clock_;
  Handlers handlers_;
  Epoch epoch_ = 0;
  uint64_t next_sequence_ = 1;
  ipc::FrameGate gate_{0};
  TimePoint last_heard_;
  uint64_t dropped_ = 0;
  std::deque<TimePoint> bad_frames_;
  std::vector<std::byte> buffer_;
};

}  // namespace refrain::worker
