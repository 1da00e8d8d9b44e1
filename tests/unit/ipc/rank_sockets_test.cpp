// The connections between the ranks of a group: who is let in, whose a frame is, what a lost rank
// looks like.
#include "ipc/transport/rank_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <cstring>
#include <thread>

namespace refrain::ipc {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxBytes = 1000;
constexpr int kRounds = 60;
constexpr auto kPatience = std::chrono::seconds(20);
const char* const kAnyPort = "tcp://127.0.0.1:*";

std::unique_ptr<RankSockets> listening(size_t max_bytes = kMaxBytes, bool peers_change = false) {
  auto sockets = RankSockets::listen(kAnyPort, max_bytes, peers_change);
  EXPECT_TRUE(sockets) << sockets.error().message;
  return std::move(*sockets);
}

RankAddress address_of(const RankSockets& sockets) {
  return {"", sockets.address(), sockets.key()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A frame of one of them as "rank: text"; the others' part of the handshakes is done meanwhile.
std::string receive(RankSockets& at, const std::vector<RankSockets*>& others) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    for (RankSockets* other : others) other->receive(milliseconds(0));
    if (const auto frame = at.receive(milliseconds(5))) {
      return fmt::format(
          "{}: {}", frame->from,
          std::string(reinterpret_cast<const char*>(frame->bytes.data()), frame->bytes.size()));
    }
  }
  return "nothing";
}

TEST(RankSockets, AFrameIsOfTheRankWhoseKeyItsConnectionHas) {
  auto zero = listening(), one = listening(), two = listening();
  const std::vector<RankAddress> all = {address_of(*zero), address_of(*one), address_of(*two)};
  ASSERT_TRUE(zero->connect(all, 0));
  ASSERT_TRUE(one->connect(all, 1));
  ASSERT_TRUE(two->connect(all, 2));
  ASSERT_TRUE(one->send(0, bytes_of("head "), bytes_of("body")));
  EXPECT_EQ(receive(*zero, {one.get(), two.get()}), "1: head body");
  ASSERT_TRUE(two->send(0, bytes_of("other"), {}));
  EXPECT_EQ(receive(*zero, {one.get(), two.get()}), "2: other");
}

// Fewer than half of the queue are on their way at any time, but more are sent within the
// millisecond in which a socket does not hear what has left its queue.
TEST(RankSockets, FramesThatWereTakenMakeRoomAtOnce) {
  auto zero = listening(), one = listening();
  const std::vector<RankAddress> all = {address_of(*zero), address_of(*one)};
  ASSERT_TRUE(zero->connect(all, 0));
  ASSERT_TRUE(one->connect(all, 1));
  ASSERT_TRUE(one->send(0, bytes_of("first"), {}));
  EXPECT_EQ(receive(*zero, {one.get()}), "1: first");
  constexpr int kFrames = 24;
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < kFrames; ++i) {
      const Status sent = one->send(0, bytes_of("x"), {});
      ASSERT_TRUE(sent) << "round " << round << ", frame " << i << ": " << sent.error().message;
    }
    for (int i = 0; i < kFrames; ++i) ASSERT_EQ(receive(*zero, {}), "1: x");
  }
}

// Knows the address and the key of rank 0, as somebody does who listens on a network that has no
// keys; and somebody without any.
TEST(RankSockets, OnlyTheRanksOfTheGroupAreLetIn_R5) {
  auto zero = listening(), one = listening(), stranger = listening();
  const std::vector<RankAddress> all = {address_of(*zero), address_of(*one)};
  ASSERT_TRUE(zero->connect(all, 0));
  ASSERT_TRUE(one->connect(all, 1));
  ASSERT_TRUE(stranger->connect({address_of(*zero), address_of(*stranger)}, 1));
  ASSERT_TRUE(stranger->send(0, bytes_of("I am rank 1"), {}));
  void* context = zmq_ctx_new();
  void* plain = zmq_socket(context, ZMQ_PUSH);
  const int linger = 0;
  zmq_setsockopt(plain, ZMQ_LINGER, &linger, sizeof linger);
  ASSERT_EQ(zmq_connect(plain, zero->address().c_str()), 0);
  ASSERT_EQ(zmq_send(plain, "me too", 6, ZMQ_DONTWAIT), 6);
  // By the time that rank 1 has been heard, the others have been turned away or wait to be.
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(one->send(0, bytes_of("from rank 1"), {}));
    EXPECT_EQ(receive(*zero, {one.get(), stranger.get()}), "1: from rank 1");
  }
  EXPECT_FALSE(stranger->connected(0));
  zmq_close(plain);
  zmq_ctx_term(context);
}

TEST(RankSockets, ARankThatEndsIsLost) {
  auto zero = listening(), one = listening();
  const std::vector<RankAddress> all = {address_of(*zero), address_of(*one)};
  ASSERT_TRUE(zero->connect(all, 0));
  ASSERT_TRUE(one->connect(all, 1));
  ASSERT_TRUE(one->send(0, bytes_of("hello"), {}));
  EXPECT_EQ(receive(*zero, {one.get()}), "1: hello");
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!zero->connected(1) && std::chrono::steady_clock::now() < end) {
    zero->receive(milliseconds(5));
    one->receive(milliseconds(0));
  }
  ASSERT_TRUE(zero->connected(1));
  EXPECT_FALSE(zero->lost(1));
  one.reset();
  while (!zero->lost(1) && std::chrono::steady_clock::now() < end) zero->receive(milliseconds(5));
  EXPECT_TRUE(zero->lost(1));
}

TEST(RankSockets, AFrameBeyondTheLimitIsNeverSeen) {
  auto zero = listening(), one = listening(4 * kMaxBytes);
  const std::vector<RankAddress> all = {address_of(*zero), address_of(*one)};
  ASSERT_TRUE(zero->connect(all, 0));
  ASSERT_TRUE(one->connect(all, 1));
  ASSERT_TRUE(one->send(0, bytes_of(std::string(kMaxBytes, 'a')), {}));
  EXPECT_EQ(receive(*zero, {one.get()}), "1: " + std::string(kMaxBytes, 'a'));
  ASSERT_TRUE(one->send(0, bytes_of(std::string(2 * kMaxBytes, 'b')), {}));
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!one->lost(0) && std::chrono::steady_clock::now() < end) {
    EXPECT_FALSE(zero->receive(milliseconds(5)));
    one->receive(milliseconds(0));
  }
  EXPECT_TRUE(one->lost(0));
}

TEST(RankSockets, WildcardsAndOtherTransportsAreRefused_R5) {
  for (const char* address : {"tcp://*:*", "tcp://0.0.0.0:7000", "ipc:///tmp/a/b", "nowhere"})
    EXPECT_FALSE(RankSockets::listen(address, kMaxBytes)) << address;
}

TEST(RankSockets, APortThatSomebodyHasMayGoFree) {
  const auto holder = listening();
  const auto second = RankSockets::listen(holder->address(), kMaxBytes);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST(RankSockets, KeysThatAreMissingOrTwiceAreRefused) {
  auto zero = listening(), one = listening();
  EXPECT_FALSE(zero->connect({address_of(*zero), {"", one->address(), ""}}, 0));
  auto two = listening();
  EXPECT_FALSE(two->connect({address_of(*one), address_of(*one), address_of(*two)}, 2));
}

// Ranks of other groups: a peer that is here before it was told of comes again.
TEST(RankSockets, APeerThatIsNotKnownYetIsLetInLater) {
  auto here = listening(kMaxBytes, true), there = listening(kMaxBytes, true);
  ASSERT_TRUE(there->add(4, address_of(*here)));
  ASSERT_TRUE(there->send(4, bytes_of("early"), {}));  // waits until it is let in
  // It is turned away meanwhile.
  for (int i = 0; i < 40; ++i) {
    here->receive(milliseconds(5));
    there->receive(milliseconds(0));
  }
  ASSERT_TRUE(here->add(1, address_of(*there)));
  EXPECT_EQ(receive(*here, {there.get()}), "1: early");
  here->remove(1);
  EXPECT_FALSE(here->send(1, bytes_of("gone"), {}));
}

// A group is lost: the news of it comes from the coordinator, and at the same time its connections
// end. ZeroMQ's thread, which tells of those ends, must not wait for a reader that has gone.
TEST(RankSockets, PeersThatAreRemovedAsTheyEndLeaveTheOthersTheirConnections) {
  auto here = listening(kMaxBytes, true), stays = listening(kMaxBytes, true);
  ASSERT_TRUE(here->add(0, address_of(*stays)));
  ASSERT_TRUE(stays->add(0, address_of(*here)));
  for (int round = 1; round <= kRounds; ++round) {
    auto goes = listening(kMaxBytes, true);
    ASSERT_TRUE(here->add(round, address_of(*goes)));
    ASSERT_TRUE(goes->add(0, address_of(*here)));
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!here->connected(round) && std::chrono::steady_clock::now() < end) {
      here->receive(milliseconds(1));
      goes->receive(milliseconds(0));
    }
    ASSERT_TRUE(here->connected(round)) << "round " << round;
    std::thread ends([&goes] { goes.reset(); });
    here->remove(round);
    ends.join();
    ASSERT_TRUE(stays->send(0, bytes_of("still here"), {}));
    ASSERT_EQ(receive(*here, {stays.get()}), "0: still here") << "round " << round;
  }
}

// A peer is told of anew while its connection stays: its frames are those of its new number.
TEST(RankSockets, AFrameIsOfTheNumberThatItsPeerHasNow) {
  auto here = listening(kMaxBytes, true), there = listening(kMaxBytes, true);
  ASSERT_TRUE(here->add(1, address_of(*there)));
  ASSERT_TRUE(there->add(4, address_of(*here)));
  ASSERT_TRUE(there->send(4, bytes_of("first"), {}));
  EXPECT_EQ(receive(*here, {there.get()}), "1: first");
  here->remove(1);
  ASSERT_TRUE(there->send(4, bytes_of("of nobody"), {}));
  ASSERT_TRUE(here->add(2, address_of(*there)));
  ASSERT_TRUE(there->send(4, bytes_of("second"), {}));
  std::string got = receive(*here, {there.get()});
  if (got == "2: of nobody") got = receive(*here, {there.get()});  // it came after add()
  EXPECT_EQ(got, "2: second");
}

TEST(RankSockets, AWaitEndsWhenItsDescriptorIsReadable) {
  auto here = listening();
  const int fd = eventfd(1, EFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  here->wake_by(fd);
  EXPECT_FALSE(here->receive(std::chrono::hours(1)).has_value());
  close(fd);
}

}  // namespace
}  // namespace refrain::ipc
