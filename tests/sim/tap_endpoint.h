#pragma once
// An endpoint that remembers the frames that went out last, to send them once more. On the executor
// of the endpoint inside.

#include <deque>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/protocol/codec.h"
#include "ipc/transport/endpoint.h"

namespace refrain::sim {

class TapEndpoint final : public ipc::Endpoint {
 public:
  using Sent = std::pair<ipc::PeerId, std::vector<std::byte>>;

  explicit TapEndpoint(std::unique_ptr<ipc::Endpoint> inner) : inner_(std::move(inner)) {}
  void start(FrameHandler on_frame) override { inner_->start(std::move(on_frame)); }
  Status send(const ipc::PeerId& to, std::span<const std::byte> frame) override {
    sent_.emplace_back(to, std::vector<std::byte>(frame.begin(), frame.end()));
    if (sent_.size() > kKept) sent_.pop_front();
    return inner_->send(to, frame);
  }
  void close() override { inner_->close(); }

  std::vector<Sent> sent() const { return {sent_.begin(), sent_.end()}; }
  // A frame of the past; what cannot be sent is lost.
  void send_again(const Sent& frame) {
    const auto decoded = ipc::decode_frame(frame.second);
    if (decoded && std::holds_alternative<ipc::Hello>(decoded->message)) return;
    if (!inner_->send(frame.first, frame.second)) return;
  }

 private:
  static constexpr size_t kKept = 100;
  std::unique_ptr<ipc::Endpoint> inner_;
  std::deque<Sent> sent_;
};

}  // namespace refrain::sim
