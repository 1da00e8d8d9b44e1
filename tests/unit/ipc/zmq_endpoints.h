#pragma once
// For tests of ZeroMQ endpoints: servers and clients of one address on one strand.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ipc/transport/endpoint.h"
#include "tests/unit/ipc/loop.h"

namespace refrain::ipc {

class ZmqEndpoint : public testing::Test {
 protected:
  ~ZmqEndpoint() override {
    loop_.call([this] { endpoints_.clear(); });
  }

  EndpointOptions options(const std::string& identity = {}) {
    EndpointOptions options;
    options.address = address_;
    options.identity = identity;
    options.curve.insecure_tcp = true;
    return options;
  }
  Endpoint& keep(Result<std::unique_ptr<Endpoint>> made) {
    if (!made) throw std::runtime_error(made.error().message);
    endpoints_.push_back(std::move(*made));
    return *endpoints_.back();
  }
  Endpoint& server(const EndpointOptions& options) {
    return loop_.call([&, this]() -> std::reference_wrapper<Endpoint> {
      return keep(make_zmq_server(loop_.io(), options, loop_.strand()));
    });
  }
  Endpoint& client(const EndpointOptions& options) {
    return loop_.call([&, this]() -> std::reference_wrapper<Endpoint> {
      return keep(make_zmq_client(loop_.io(), options, loop_.strand()));
    });
  }
  void start(Endpoint& endpoint, Endpoint::FrameHandler handler) {
    loop_.call([&] { endpoint.start(std::move(handler)); });
  }
  Status send(Endpoint& endpoint, const PeerId& to, const std::string& text) {
    return loop_.call([&] { return endpoint.send(to, as_frame(text)); });
  }
  // Makes a server, and a client that has said hello and reads nothing; their queues are short.
  PeerId add_quiet_client(Inbox& of_server) {
    auto small = options();
    small.high_water_mark = kShortQueue;
    start(server(small), of_server.handler());
    small.identity = "rank-0";
    EXPECT_TRUE(send(client(small), {}, "hello"));
    const auto received = of_server.wait(1);
    return received.empty() ? PeerId{} : received[0].first;
  }
  // The client says something again and again: what it says on a line that breaks may be lost.
  // Who it was by the server's account; empty: it was not heard.
  PeerId until_heard(Endpoint& peer, Inbox& inbox, const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      EXPECT_TRUE(send(peer, {}, text));
      for (const auto& [from, said] : inbox.wait(inbox.size() + 1, std::chrono::milliseconds(50)))
        if (said == text) return from;
    }
    return {};
  }

  static constexpr int kShortQueue = 16;

  TemporaryDirectory directory_;
  std::string address_ = "ipc://" + (directory_.path() / "run/socket").string();
  Loop loop_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace refrain::ipc
