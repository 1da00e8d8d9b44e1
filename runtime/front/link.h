#pragma once
// One end of the line between front and coordinator: frames of a session, counted, so that none is
// lost unseen. Lives on its endpoint's executor.

#include <memory>
#include <optional>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/transport/endpoint.h"
#include "runtime/front/codec.h"

namespace refrain::front {

class Link {
 public:
  explicit Link(std::unique_ptr<ipc::Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  void start(ipc::Endpoint::FrameHandler handler) { endpoint_->start(std::move(handler)); }
  void close() { endpoint_->close(); }
  // From here on both ends count from 1. 0: no session.
  void begin(uint64_t session);
  uint64_t session() const { return session_; }

  // After an error the session is lost, but for kTooLarge: then nothing was sent.
  Status send(const ipc::PeerId& to, const Message& message);
  // Nothing: it is of another session. An error: what should have come before it is lost.
  Result<std::optional<Message>> take(std::span<const std::byte> frame);

 private:
  std::unique_ptr<ipc::Endpoint> endpoint_;
  std::vector<std::byte> buffer_;
  uint64_t session_ = 0;
  uint64_t sent_ = 0;
  ipc::FrameGate gate_{0};
};

}  // namespace refrain::front
