// The in-process hub and programmed faults under the deterministic scheduler.
#include "ipc/transport/inproc_endpoint.h"

#include <gtest/gtest.h>

#include "ipc/protocol/codec.h"
#include "ipc/transport/fault_endpoint.h"
#include "runtime/actor/manual_executor.h"
#include "tests/unit/ipc/loop.h"
#include "tests/unit/ipc/random_message.h"

namespace refrain::ipc {
namespace {

using std::chrono::milliseconds;

class Inproc : public testing::Test {
 protected:
  std::unique_ptr<Endpoint> server(int mark = 1024) {
    auto made = hub_->make_server(scheduler_.make_executor("server"), mark);
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  std::unique_ptr<Endpoint> client(const PeerId& name, int mark = 1024) {
    auto made = hub_->make_client(scheduler_.make_executor(name), name, mark);
    EXPECT_TRUE(made);
    return std::move(*made);
  }

  ManualScheduler scheduler_;
  std::shared_ptr<InprocHub> hub_ = InprocHub::create();
  Inbox inbox_;
  Inbox other_;
};

TEST_F(Inproc, CarriesFramesBothWaysOnTheReceiversExecutor) {
  const auto bound = server();
  const auto peer = client("rank-0");
  bound->start([&](const PeerId& from, std::span<const std::byte> frame) {
    EXPECT_TRUE(bound->send(from, as_frame(from + ": " + as_text(frame))));
  });
  peer->start(inbox_.handler());
  EXPECT_TRUE(peer->send({}, as_frame("hi")));
  EXPECT_EQ(inbox_.size(), 0u);  // nothing runs by itself
  scheduler_.run_until_idle();
  ASSERT_EQ(inbox_.size(), 1u);
  EXPECT_EQ(inbox_.wait(1)[0].second, "rank-0: hi");
  EXPECT_EQ(scheduler_.log(), (std::vector<std::string>{"0 server #1", "0 rank-0 #2"}));
}

TEST_F(Inproc, FramesWaitForAServerThatComesLater) {
  const auto peer = client("rank-0");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(peer->send({}, as_frame(std::to_string(i))));
  const auto bound = server();
  scheduler_.run_until_idle();
  bound->start(inbox_.handler());
  scheduler_.run_until_idle();
  const auto received = inbox_.wait(3);
  ASSERT_EQ(received.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(received[i].second, std::to_string(i));
}

TEST_F(Inproc, KeepsEachPairsOrderUnderAnySeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ManualScheduler scheduler(seed);
    const auto hub = InprocHub::create();
    const auto bound = *hub->make_server(scheduler.make_executor("server"));
    std::map<PeerId, std::string> heard;
    bound->start([&](const PeerId& from, std::span<const std::byte> frame) {
      heard[from] += as_text(frame);
    });
    std::vector<std::unique_ptr<Endpoint>> peers;
    for (const char* name : {"a", "b", "c"})
      peers.push_back(*hub->make_client(scheduler.make_executor(name), name));
    for (const char* text : {"1", "2", "3", "4"})
      for (const auto& peer : peers) EXPECT_TRUE(peer->send({}, as_frame(text)));
    scheduler.run_until_idle();
    EXPECT_EQ(heard.size(), 3u);
    for (const auto& [from, text] : heard) EXPECT_EQ(text, "1234");
  }
}

TEST_F(Inproc, FullQueuesUnknownPeersAndClosedEndsAreRefused) {
  const auto bound = server(2);
  const auto peer = client("rank-0", 2);
  EXPECT_EQ(bound->send("rank-0", as_frame("x")).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(peer->send({}, as_frame("1")));
  EXPECT_TRUE(peer->send({}, as_frame("2")));
  EXPECT_EQ(peer->send({}, as_frame("3")).error().code, ErrorCode::kOverloaded);
  EXPECT_TRUE(bound->send("rank-0", as_frame("x")));  // known since it spoke
  peer->close();
  EXPECT_EQ(peer->send({}, as_frame("4")).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(bound->send("rank-0", as_frame("x")).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(hub_->make_server(scheduler_.make_executor("second")));
  const auto again = client("rank-0");
  EXPECT_FALSE(hub_->make_client(scheduler_.make_executor("twin"), "rank-0"));
}

TEST_F(Inproc, NothingArrivesAfterClose) {
  const auto bound = server();
  const auto peer = client("rank-0");
  bound->start(inbox_.handler());
  EXPECT_TRUE(peer->send({}, as_frame("late")));
  bound->close();
  scheduler_.run_until_idle();
  EXPECT_EQ(inbox_.size(), 0u);
  const auto next = server();  // a restarted coordinator
  next->start(other_.handler());
  EXPECT_TRUE(peer->send({}, as_frame("hello again")));
  scheduler_.run_until_idle();
  EXPECT_EQ(other_.size(), 1u);
}

struct Outcome {
  FaultCounts counts;
  uint64_t accepted = 0;
  uint64_t undecodable = 0;
  uint64_t out_of_order = 0;
  std::vector<std::string> log;
};

// `frames` heartbeats through a faulty line, checked as a coordinator would.
Outcome send_through(const FaultProgram& program, uint64_t frames) {
  ManualScheduler scheduler(program.seed);
  const auto hub = InprocHub::create();
  auto executor = scheduler.make_executor("rank-0");
  auto inner = hub->make_client(executor, "rank-0");
  FaultEndpoint line(std::move(*inner), executor, program);
  const auto bound = *hub->make_server(scheduler.make_executor("server"));
  Outcome outcome;
  FrameGate gate(1);
  bound->start([&](const PeerId&, std::span<const std::byte> bytes) {
    const auto decoded = decode_frame(bytes);
    if (!decoded) {
      ++outcome.undecodable;
    } else if (!gate.accept(decoded->info)) {
      ++outcome.out_of_order;
    } else {
      ++outcome.accepted;
    }
  });
  for (uint64_t i = 1; i <= frames; ++i) {
    EXPECT_TRUE(line.send({}, frame_of(Heartbeat{i, i}, {1, i})));
    scheduler.advance(milliseconds(1));
  }
  scheduler.advance(std::chrono::seconds(1));
  outcome.counts = line.counts();
  outcome.log = scheduler.log();
  return outcome;
}

TEST(FaultEndpoint, WithoutFaultsEverythingArrives) {
  const auto outcome = send_through({}, 500);
  EXPECT_EQ(outcome.accepted, 500u);
  EXPECT_EQ(outcome.undecodable + outcome.out_of_order, 0u);
}

TEST(FaultEndpoint, DuplicatesAreTakenOnce_R3) {
  FaultProgram program;
  program.duplicate = 300;
  const auto outcome = send_through(program, 500);
  EXPECT_GT(outcome.counts.duplicated, 100u);
  EXPECT_EQ(outcome.accepted, 500u);
  EXPECT_EQ(outcome.out_of_order, outcome.counts.duplicated);
}

TEST(FaultEndpoint, DamagedFramesAreNeverDecoded_R6) {
  FaultProgram program;
  program.corrupt = 500;
  program.truncate = 500;
  const auto outcome = send_through(program, 1000);
  EXPECT_EQ(outcome.counts.corrupted + outcome.counts.truncated, 1000u);
  EXPECT_GT(outcome.counts.truncated, 300u);
  EXPECT_EQ(outcome.undecodable, 1000u);
}

TEST(FaultEndpoint, LossAndOvertakingStopTheStream_R3) {
  FaultProgram program;
  program.drop = 10;
  auto outcome = send_through(program, 1000);
  EXPECT_GT(outcome.counts.dropped, 0u);
  EXPECT_LT(outcome.accepted, 1000u);
  EXPECT_EQ(outcome.accepted + outcome.out_of_order + outcome.counts.dropped, 1000u);
  program = {};
  program.delay = 20;
  outcome = send_through(program, 1000);
  EXPECT_GT(outcome.counts.delayed, 0u);
  EXPECT_GT(outcome.out_of_order, 0u);
  EXPECT_EQ(outcome.accepted + outcome.out_of_order, 1000u);
}

TEST(FaultEndpoint, SameSeedGivesTheSameFaults_R20) {
  FaultProgram program{7, 50, 50, 50, 50, 50};
  const auto one = send_through(program, 300);
  const auto two = send_through(program, 300);
  EXPECT_EQ(one.log, two.log);
  EXPECT_EQ(one.accepted, two.accepted);
  program.seed = 8;
  EXPECT_NE(one.log, send_through(program, 300).log);
}

TEST_F(Inproc, ACutLinePassesNothingEitherWayUntilMended) {
  const auto bound = server();
  auto executor = scheduler_.make_executor("rank-0");
  FaultEndpoint line(*hub_->make_client(executor, "rank-0"), executor, {});
  bound->start(inbox_.handler());
  line.start(other_.handler());
  EXPECT_TRUE(line.send({}, as_frame("1")));
  scheduler_.run_until_idle();
  line.set_cut(true);
  EXPECT_TRUE(line.send({}, as_frame("2")));
  EXPECT_TRUE(bound->send("rank-0", as_frame("x")));
  scheduler_.run_until_idle();
  EXPECT_EQ(line.counts().cut, 2u);
  line.set_cut(false);
  EXPECT_TRUE(line.send({}, as_frame("3")));
  EXPECT_TRUE(bound->send("rank-0", as_frame("y")));
  scheduler_.run_until_idle();
  const auto received = inbox_.wait(2);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[1].second, "3");
  ASSERT_EQ(other_.size(), 1u);
  EXPECT_EQ(other_.wait(1)[0].second, "y");
}

}  // namespace
}  // namespace refrain::ipc
