#include "runtime/engine/group_endpoints.h"

#include <unordered_map>
#include <utility>

#include "ipc/protocol/codec.h"

namespace refrain {
namespace {

// The endpoint that they share.
struct Shared {
  std::unique_ptr<ipc::Endpoint> endpoint;
  std::vector<ipc::Endpoint::FrameHandler> handlers;  // by group; empty: not started, or closed
  std::unordered_map<ipc::PeerId, size_t> group_of;   // a peer stays in its group
  size_t open = 0;
  bool started = false;

  // Who the frame is for. One of a peer that never said hello is the first group's to reject.
  size_t group_for(const ipc::PeerId& from, std::span<const std::byte> frame) {
    if (const auto known = group_of.find(from); known != group_of.end()) return known->second;
    const auto decoded = ipc::decode_frame(frame);
    const auto* hello = decoded ? std::get_if<ipc::Hello>(&decoded->message) : nullptr;
    if (hello == nullptr || hello->group < 0) return 0;
    const auto group = static_cast<size_t>(hello->group);
    if (group >= handlers.size()) return 0;
    group_of.emplace(from, group);
    return group;
  }
};

class GroupEndpoint final : public ipc::Endpoint {
 public:
  GroupEndpoint(std::shared_ptr<Shared> shared, size_t group)
      : shared_(std::move(shared)), group_(group) {}
  ~GroupEndpoint() override { close(); }

  void start(FrameHandler on_frame) override {
    shared_->handlers[group_] = std::move(on_frame);
    if (std::exchange(shared_->started, true)) return;
    shared_->endpoint->start(
        [weak = std::weak_ptr(shared_)](const ipc::PeerId& from, std::span<const std::byte> frame) {
          const auto shared = weak.lock();
          if (!shared) return;
          // A copy: the group may close its endpoint while it handles the frame.
          const FrameHandler handler = shared->handlers[shared->group_for(from, frame)];
          if (handler) handler(from, frame);
        });
  }
  Status send(const ipc::PeerId& to, std::span<const std::byte> frame) override {
    return shared_->endpoint->send(to, frame);
  }
  void close() override {
    if (std::exchange(closed_, true)) return;
    shared_->handlers[group_] = nullptr;
    if (--shared_->open == 0) shared_->endpoint->close();
  }
  std::string address() const override { return shared_->endpoint->address(); }
  uint64_t discarded() const override { return group_ == 0 ? shared_->endpoint->discarded() : 0; }

 private:
  std::shared_ptr<Shared> shared_;
  const size_t group_;
  bool closed_ = false;
};

}  // namespace

std::vector<std::unique_ptr<ipc::Endpoint>> split_endpoint(std::unique_ptr<ipc::Endpoint> endpoint,
                                                           int32_t num_groups) {
  std::vector<std::unique_ptr<ipc::Endpoint>> endpoints;
  if (num_groups == 1) {
    endpoints.push_back(std::move(endpoint));
    return endpoints;
  }
  auto shared = std::make_shared<Shared>();
  shared->endpoint = std::move(endpoint);
  shared->open = static_cast<size_t>(num_groups);
  shared->handlers.resize(shared->open);
  for (size_t group = 0; group < shared->open; ++group)
    endpoints.push_back(std::make_unique<GroupEndpoint>(shared, group));
  return endpoints;
}

}  // namespace refrain
