// Lines of ZeroMQ endpoints that break: who is heard again, and that it ends nobody.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <list>
#include <thread>

#include "runtime/base/unique_handle.h"
#include "tests/unit/ipc/zmq_endpoints.h"

namespace refrain::ipc {
namespace {

// A way to a server on the loopback interface. When it breaks, as where a network is cut in two,
// the client's end is closed and the server's stays open, with nobody at the other end.
class Relay {
 public:
  explicit Relay(const std::string& server)
      : server_port_(static_cast<uint16_t>(std::stoi(server.substr(server.rfind(':') + 1)))) {
    sockaddr_in own = loopback(0);
    socklen_t size = sizeof own;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) != 0 ||
        ::listen(listener_.get(), 8) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
      throw std::runtime_error("no relay");
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~Relay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& address() const { return address_; }
  void break_lines() {
    const std::scoped_lock lock(mutex_);
    for (Line& line : lines_) {
      line.broken = true;
      ::shutdown(line.client.get(), SHUT_RDWR);
    }
  }

 private:
  struct Line {
    UniqueFd client, server;
    bool broken = false;
  };
  static UniqueFd tcp_socket() {
    return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void serve() {
    std::vector<pollfd> ends;
    do {
      ends.assign(1, {listener_.get(), POLLIN, 0});
      for (const Line& line : lines_) {
        ends.push_back({line.client.get(), POLLIN, 0});
        ends.push_back({line.client ? line.server.get() : -1, POLLIN, 0});
      }
      ::poll(ends.data(), ends.size(), -1);
      const std::scoped_lock lock(mutex_);
      size_t at = 1;
      for (Line& line : lines_) {
        const bool from_client = ends[at++].revents != 0, from_server = ends[at++].revents != 0;
        if (line.broken || (from_client && !pass(line.client, line.server)) ||
            (from_server && !pass(line.server, line.client)))
          line.client.reset();
      }
    } while (ends[0].revents == 0 || accept());
  }
  bool accept() {
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return false;
    UniqueFd server = tcp_socket();
    const sockaddr_in to = loopback(server_port_);
    if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      return false;
    const std::scoped_lock lock(mutex_);
    lines_.push_back({std::move(client), std::move(server)});
    return true;
  }
  static bool pass(const UniqueFd& from, const UniqueFd& to) {
    char bytes[4096];
    const ssize_t got = ::recv(from.get(), bytes, sizeof bytes, 0);
    return got > 0 && ::send(to.get(), bytes, static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }

  const uint16_t server_port_;
  UniqueFd listener_ = tcp_socket();
  std::string address_;
  std::mutex mutex_;  // over lines_; the thread alone adds to them and closes
  std::list<Line> lines_;
  std::thread thread_;
};

// Its new connection has the name of the old one, which the server still holds to be alive.
TEST_F(ZmqEndpoint, AClientWhoseLineBreaksUnseenByTheServerIsHeardAgain_R5) {
  address_ = "tcp://127.0.0.1:0";
  Inbox at_server, at_client;
  Endpoint& bound = server(options());
  start(bound, at_server.handler());
  Relay relay(bound.address());
  address_ = relay.address();
  Endpoint& peer = client(options("rank-0"));
  start(peer, at_client.handler());
  EXPECT_TRUE(send(peer, {}, "before"));
  const auto before = at_server.wait(1);
  ASSERT_EQ(before.size(), 1u);
  for (size_t i = 1; i <= 3; ++i) {
    relay.break_lines();
    const PeerId heard = until_heard(peer, at_server, "after break " + std::to_string(i));
    ASSERT_EQ(heard, before[0].first) << "break " << i;
    EXPECT_TRUE(send(bound, heard, "answer"));
    ASSERT_EQ(at_client.wait(i).size(), i) << "break " << i;
  }
}

// ZeroMQ's heartbeats end the process when they are due on a line that broke with frames unread.
TEST_F(ZmqEndpoint, ALineThatBreaksWithFramesUnreadEndsNobody_R6) {
  Inbox inbox, late;
  const PeerId quiet = add_quiet_client(inbox);
  // More than the server's own queue holds: the others have gone out to the client.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  loop_.call([&] {
    const std::vector<std::byte> frame(1 << 20);
    int sent = 0;
    while (sent < kShortQueue * 3 / 2 && std::chrono::steady_clock::now() < deadline)
      if (endpoints_[0]->send(quiet, frame)) ++sent;
    EXPECT_EQ(sent, kShortQueue * 3 / 2);
    endpoints_[0]->close();
  });
  // Nothing tells that no heartbeat is due: one would come in this time.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  start(*endpoints_[1], late.handler());
  EXPECT_GE(late.wait(1).size(), 1u);
  loop_.call([&] { endpoints_[1]->close(); });
}

TEST_F(ZmqEndpoint, OversizedMessagesAreDroppedAndTheLineLivesOn_R5) {
  auto limited = options();
  limited.max_message_bytes = 64 << 10;
  Inbox inbox;
  Endpoint& bound = server(limited);
  start(bound, inbox.handler());
  Endpoint& peer = client(options("rank-0"));
  EXPECT_TRUE(send(peer, {}, "before"));
  const auto before = inbox.wait(1);
  ASSERT_EQ(before.size(), 1u);
  EXPECT_TRUE(send(peer, {}, std::string(100 << 10, 'x')));
  // Its connection is cut for that, and made again by itself.
  EXPECT_EQ(until_heard(peer, inbox, "after"), before[0].first);
  const auto refused =
      loop_.call([&] { return bound.send(before[0].first, std::vector<std::byte>(100 << 10)); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
}

TEST_F(ZmqEndpoint, ClientFindsARestartedServer) {
  Inbox first;
  Endpoint& old = server(options());
  start(old, first.handler());
  Endpoint& peer = client(options("rank-0"));
  EXPECT_TRUE(send(peer, {}, "one"));
  ASSERT_EQ(first.wait(1).size(), 1u);
  loop_.call([&] { old.close(); });
  Inbox second;
  start(server(options()), second.handler());
  EXPECT_NE(until_heard(peer, second, "two"), "");
}

}  // namespace
}  // namespace refrain::ipc
