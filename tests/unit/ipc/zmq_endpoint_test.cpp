// ZeroMQ endpoints between threads and processes: delivery, order, backpressure, hostile peers.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <set>

#include "ipc/transport/endpoint.h"
#include "tests/unit/ipc/zmq_endpoints.h"

namespace refrain::ipc {
namespace {

void expect_round_trips(Loop& loop, Endpoint& server, Endpoint& one, Endpoint& two) {
  Inbox at_one;
  Inbox at_two;
  loop.call([&] {
    server.start([&](const PeerId& from, std::span<const std::byte> frame) {
      EXPECT_TRUE(server.send(from, as_frame(from.substr(0, 6) + " said " + as_text(frame))));
    });
    one.start(at_one.handler());
    two.start(at_two.handler());
    EXPECT_TRUE(one.send({}, as_frame("hello")));
    EXPECT_TRUE(two.send({}, as_frame("hi")));
  });
  ASSERT_EQ(at_one.wait(1).size(), 1u);
  ASSERT_EQ(at_two.wait(1).size(), 1u);
  EXPECT_EQ(at_one.wait(1)[0].second, "rank-0 said hello");
  EXPECT_EQ(at_two.wait(1)[0].second, "rank-1 said hi");
  loop.call([&] {
    one.close();
    two.close();
    server.close();
  });
}

TEST_F(ZmqEndpoint, AnswersEachClientOverIpc) {
  expect_round_trips(loop_, server(options()), client(options("rank-0")),
                     client(options("rank-1")));
}

TEST_F(ZmqEndpoint, AnswersEachClientOverTcp) {
  address_ = "tcp://127.0.0.1:0";
  Endpoint& bound = server(options());
  address_ = bound.address();
  EXPECT_TRUE(address_.starts_with("tcp://127.0.0.1:")) << address_;
  expect_round_trips(loop_, bound, client(options("rank-0")), client(options("rank-1")));
}

// The child connects before there is a server, and exits 0 after its answer has come. It is forked
// before this process has a second thread.
TEST(ZmqProcesses, ClientThatCameFirstReachesTheServer) {
  const TemporaryDirectory directory;
  EndpointOptions options;
  options.address = "ipc://" + (directory.path() / "run/socket").string();
  options.identity = "rank-0";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    IoContext io;
    auto made = make_zmq_client(io, options);
    if (!made) ::_exit(3);
    int status = 4;
    (*made)->start([&](const PeerId&, std::span<const std::byte> frame) {
      status = as_text(frame) == "welcome" ? 0 : 5;
      io.stop();
    });
    if (!(*made)->send({}, as_frame("hello"))) ::_exit(6);
    ::alarm(20);
    io.run();
    ::_exit(status);
  }
  Loop loop;
  Inbox inbox;
  std::unique_ptr<Endpoint> server;
  loop.call([&] {
    server = std::move(*make_zmq_server(loop.io(), options, loop.strand()));
    server->start(inbox.handler());
  });
  const auto received = inbox.wait(1);
  EXPECT_EQ(received.size(), 1u);
  if (!received.empty()) {
    EXPECT_EQ(received[0].second, "hello");
    EXPECT_TRUE(loop.call([&] { return server->send(received[0].first, as_frame("welcome")); }));
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  loop.call([&] { server.reset(); });
}

// Bursts in both directions at once: a lost edge of the descriptor would hang this.
TEST_F(ZmqEndpoint, LosesNothingAndKeepsOrderUnderBursts) {
  constexpr int kFrames = 20'000;
  Endpoint& bound = server(options());
  Endpoint& peer = client(options("rank-0"));
  std::promise<void> done;
  int echoed = 0;
  int sent = 0;
  std::function<void()> fill = [&] {
    while (sent < kFrames && sent - echoed < 200) {
      if (!peer.send({}, as_frame(std::to_string(sent)))) break;
      ++sent;
    }
  };
  loop_.call([&] {
    bound.start([&](const PeerId& from, std::span<const std::byte> frame) {
      EXPECT_TRUE(bound.send(from, frame));
    });
    peer.start([&](const PeerId&, std::span<const std::byte> frame) {
      EXPECT_EQ(as_text(frame), std::to_string(echoed));
      ++echoed;
      if (echoed % 7 == 0 || echoed == sent) fill();
      if (echoed == kFrames) done.set_value();
    });
    fill();
  });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready)
      << loop_.call([&] { return echoed; }) << " of " << kFrames;
}

TEST_F(ZmqEndpoint, UnknownAndDepartedPeersAreUnavailable) {
  Inbox inbox;
  Endpoint& bound = server(options());
  start(bound, inbox.handler());
  const auto unknown = send(bound, "rank-9", "x");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(unknown.error().message.find("rank-9"), std::string::npos);
  Endpoint& peer = client(options("rank-0"));
  EXPECT_TRUE(send(peer, {}, "hello"));
  const auto received = inbox.wait(1);
  ASSERT_EQ(received.size(), 1u);
  loop_.call([&] { peer.close(); });
  EXPECT_EQ(send(peer, {}, "x").error().code, ErrorCode::kUnavailable);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Status status;
  do {  // its queue may be full before its end is known
    status = send(bound, received[0].first, "x");
  } while ((status || status.error().code == ErrorCode::kOverloaded) &&
           std::chrono::steady_clock::now() < deadline);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

// sends to a peer that reads nothing are refused at the mark, not waited for.
TEST_F(ZmqEndpoint, PeerThatReadsNothingNeverBlocksTheSender_R6) {
  Inbox inbox;
  const PeerId quiet = add_quiet_client(inbox);
  loop_.call([&] {
    const std::vector<std::byte> frame(1 << 20);
    int refused = 0;
    int blocked = 0;
    for (int i = 0; i < 500; ++i) {
      rusage before{};
      rusage after{};
      ::getrusage(RUSAGE_THREAD, &before);
      const auto start = std::chrono::steady_clock::now();
      const auto status = endpoints_[0]->send(quiet, frame);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      ::getrusage(RUSAGE_THREAD, &after);
      // Preempted by other programs is not blocked: that shows as a voluntary switch.
      if (after.ru_nvcsw > before.ru_nvcsw && took.count() > 10.0) ++blocked;
      if (!status) {
        EXPECT_EQ(status.error().code, ErrorCode::kOverloaded);
        ++refused;
      }
    }
    EXPECT_GT(refused, 400);
    // A send that waits for the peer would do so in all of those; a machine that stalls does so
    // once.
    EXPECT_LT(blocked, 10);
  });
}

TEST_F(ZmqEndpoint, TwoClaimantsOfOneIdentityAreTwoPeers) {
  Inbox inbox;
  start(server(options()), inbox.handler());
  EXPECT_TRUE(send(client(options("rank-0")), {}, "a"));
  EXPECT_TRUE(send(client(options("rank-0")), {}, "b"));
  std::set<PeerId> peers;
  for (const auto& [from, text] : inbox.wait(2)) {
    EXPECT_TRUE(from.starts_with("rank-0-" + std::to_string(::getpid()) + "-")) << from;
    peers.insert(from);
  }
  EXPECT_EQ(peers.size(), 2u);
}

TEST_F(ZmqEndpoint, LastWordsArriveWhenTheSenderLingers) {
  Inbox inbox;
  start(server(options()), inbox.handler());
  auto lingering = options("rank-0");
  lingering.linger_ms = 5'000;
  Endpoint& peer = client(lingering);
  loop_.call([&] {
    EXPECT_TRUE(peer.send({}, as_frame("failed at step 7")));
    peer.close();
  });
  const auto received = inbox.wait(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].second, "failed at step 7");
}

// One turn takes a bounded number of frames: what else is on the thread runs in between.
TEST_F(ZmqEndpoint, AFloodLeavesTurnsToOthers) {
  constexpr int kFrames = 1'000;
  Endpoint& bound = server(options());
  Endpoint& peer = client(options("rank-0"));
  loop_.call([&] {
    for (int i = 0; i < kFrames; ++i) EXPECT_TRUE(peer.send({}, as_frame("x")));
  });
  std::promise<void> done;
  int received = 0;
  int turns = 0;
  std::function<void()> take_turn = [&] {
    ++turns;
    if (received < kFrames) loop_.strand()->post(take_turn);
  };
  int longest = 0;
  int last_turn = 0;
  int in_turn = 0;
  loop_.call([&] {
    bound.start([&](const PeerId&, std::span<const std::byte>) {
      in_turn = turns == last_turn ? in_turn + 1 : 1;
      last_turn = turns;
      longest = std::max(longest, in_turn);
      if (++received == kFrames) done.set_value();
    });
    take_turn();
  });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_LE(loop_.call([&] { return longest; }), 64);
}

TEST_F(ZmqEndpoint, HandlerMayCloseItsEndpoint) {
  Endpoint& bound = server(options());
  Endpoint& peer = client(options("rank-0"));
  std::promise<void> done;
  int calls = 0;
  loop_.call([&] {
    bound.start([&](const PeerId&, std::span<const std::byte>) {
      ++calls;
      bound.close();
      done.set_value();
    });
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(peer.send({}, as_frame("x")));
  });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(loop_.call([&] { return calls; }), 1);
}

TEST_F(ZmqEndpoint, MessagesOfSeveralPartsOrWithoutANameAreDiscarded) {
  Inbox inbox;
  Endpoint& bound = server(options());
  start(bound, inbox.handler());
  void* context = zmq_ctx_new();
  void* nameless = zmq_socket(context, ZMQ_DEALER);
  void* several = zmq_socket(context, ZMQ_DEALER);
  zmq_setsockopt(several, ZMQ_ROUTING_ID, "several", 7);
  for (void* socket : {nameless, several}) {
    ASSERT_EQ(zmq_connect(socket, address_.c_str()), 0);
    if (socket == several) {
      ASSERT_EQ(zmq_send(socket, "a", 1, ZMQ_SNDMORE), 1);
    }
    ASSERT_EQ(zmq_send(socket, "b", 1, 0), 1);
  }
  ASSERT_EQ(zmq_send(several, "whole", 5, 0), 5);
  const auto received = inbox.wait(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0], (Inbox::Entry{"several", "whole"}));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (loop_.call([&] { return bound.discarded(); }) < 2 &&
         std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_EQ(loop_.call([&] { return bound.discarded(); }), 2u);
  EXPECT_EQ(inbox.size(), 1u);
  zmq_close(nameless);
  zmq_close(several);
  zmq_ctx_term(context);
}

}  // namespace
}  // namespace refrain::ipc
