#include "ipc/transport/inproc_endpoint.h"

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/base/check.h"

namespace refrain::ipc {

// A receiving end: frames wait here until the owner's executor gets to them.
struct InprocHub::Port {
  struct Waiting {
    PeerId from;
    std::vector<std::byte> bytes;
  };

  explicit Port(int mark) : high_water_mark(static_cast<size_t>(mark)) {}

  std::mutex mutex;
  std::deque<Waiting> queue;
  size_t high_water_mark;
  std::shared_ptr<Executor> executor;  // null until an endpoint owns the port
  Endpoint::FrameHandler handler;      // null until started
  bool closed = false;

  static Status push(const std::shared_ptr<Port>& port, const PeerId& from,
                     std::span<const std::byte> frame) {
    const std::scoped_lock lock(port->mutex);
    if (port->closed) return fail(ErrorCode::kUnavailable, "the other end is closed");
    if (port->queue.size() >= port->high_water_mark)
      return fail(ErrorCode::kOverloaded, "the queue of {} frames is full", port->high_water_mark);
    port->queue.push_back({from, {frame.begin(), frame.end()}});
    if (port->handler) port->executor->post([port] { deliver(port); });
    return {};
  }

  static void deliver(const std::shared_ptr<Port>& port) {
    Waiting next;
    {
      const std::scoped_lock lock(port->mutex);
      if (port->closed || port->queue.empty()) return;
      next = std::move(port->queue.front());
      port->queue.pop_front();
    }
    port->handler(next.from, next.bytes);  // set before the first delivery, never changed
  }

  static void start(const std::shared_ptr<Port>& port, Endpoint::FrameHandler on_frame) {
    const std::scoped_lock lock(port->mutex);
    REFRAIN_CHECK(!port->handler, "endpoint started twice");
    port->handler = std::move(on_frame);
    for (size_t i = 0; i < port->queue.size(); ++i) port->executor->post([port] { deliver(port); });
  }

  static void close(const std::shared_ptr<Port>& port) {
    std::deque<Waiting> dropped;
    const std::scoped_lock lock(port->mutex);
    port->closed = true;
    dropped.swap(port->queue);
    // Not here: the handler may be what is running.
    if (port->handler) port->executor->post([port] { port->handler = nullptr; });
  }
};

struct InprocHub::State {
  std::mutex mutex;
  std::shared_ptr<Port> server;                       // there before its endpoint is
  std::map<PeerId, std::shared_ptr<Port>> clients;    // all alive
  std::map<PeerId, std::shared_ptr<Port>> reachable;  // those the server has heard from
  bool has_server = false;
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(std::shared_ptr<InprocHub> hub, std::shared_ptr<InprocHub::Port> port,
                 bool is_server, PeerId identity)
      : hub_(std::move(hub)),
        port_(std::move(port)),
        is_server_(is_server),
        identity_(std::move(identity)) {}
  ~InprocEndpoint() override { close(); }

  void start(FrameHandler on_frame) override { InprocHub::Port::start(port_, std::move(on_frame)); }

  Status send(const PeerId& to, std::span<const std::byte> frame) override {
    if (closed_) return fail(ErrorCode::kUnavailable, "the endpoint is closed");
    std::shared_ptr<InprocHub::Port> target;
    {
      auto& state = *hub_->state_;
      const std::scoped_lock lock(state.mutex);
      if (is_server_) {
        const auto found = state.reachable.find(to);
        if (found == state.reachable.end())
          return fail(ErrorCode::kUnavailable, "no way to {}: not connected", to);
        target = found->second;
      } else {
        state.reachable[identity_] = port_;
        target = state.server;
      }
    }
    return InprocHub::Port::push(target, identity_, frame);
  }

  void close() override {
    if (closed_) return;
    closed_ = true;
    auto& state = *hub_->state_;
    const std::scoped_lock lock(state.mutex);
    InprocHub::Port::close(port_);
    if (is_server_) {
      state.server = std::make_shared<InprocHub::Port>(static_cast<int>(port_->high_water_mark));
      state.reachable.clear();
      state.has_server = false;
    } else {
      state.clients.erase(identity_);
      state.reachable.erase(identity_);
    }
  }

 private:
  std::shared_ptr<InprocHub> hub_;
  std::shared_ptr<InprocHub::Port> port_;
  bool is_server_;
  PeerId identity_;
  bool closed_ = false;
};

InprocHub::InprocHub() : state_(std::make_unique<State>()) {
  state_->server = std::make_shared<Port>(1024);
}
InprocHub::~InprocHub() = default;

std::shared_ptr<InprocHub> InprocHub::create() {
  return std::shared_ptr<InprocHub>(new InprocHub());
}

Result<std::unique_ptr<Endpoint>> InprocHub::make_server(std::shared_ptr<Executor> executor,
                                                         int high_water_mark) {
  const std::scoped_lock lock(state_->mutex);
  if (state_->has_server) return fail(ErrorCode::kInvalidArgument, "the hub has a server already");
  state_->has_server = true;
  const std::scoped_lock port_lock(state_->server->mutex);
  state_->server->executor = std::move(executor);
  state_->server->high_water_mark = static_cast<size_t>(high_water_mark);
  return std::make_unique<InprocEndpoint>(shared_from_this(), state_->server, true, PeerId());
}

Result<std::unique_ptr<Endpoint>> InprocHub::make_client(std::shared_ptr<Executor> executor,
                                                         PeerId identity, int high_water_mark) {
  const std::scoped_lock lock(state_->mutex);
  auto port = std::make_shared<Port>(high_water_mark);
  port->executor = std::move(executor);
  if (!state_->clients.emplace(identity, port).second)
    return fail(ErrorCode::kInvalidArgument, "the hub has a client {} already", identity);
  return std::make_unique<InprocEndpoint>(shared_from_this(), std::move(port), false,
                                          std::move(identity));
}

}  // namespace refrain::ipc
