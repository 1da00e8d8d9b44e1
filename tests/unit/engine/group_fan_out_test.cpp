// What a group's ranks are told, with which numbers, over an endpoint that keeps the frames.
#include "runtime/engine/group_fan_out.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace refrain {
namespace {

struct Sent {
  std::map<ipc::PeerId, std::vector<ipc::DecodedFrame>> frames;
  std::set<ipc::PeerId> deaf;
};

class KeepingEndpoint : public ipc::Endpoint {
 public:
  explicit KeepingEndpoint(Sent& sent) : sent_(sent) {}
  void start(FrameHandler) override {}
  Status send(const ipc::PeerId& to, std::span<const std::byte> frame) override {
    if (sent_.deaf.contains(to)) return fail(ErrorCode::kOverloaded, "its queue is full");
    auto decoded = ipc::decode_frame(frame);
    EXPECT_TRUE(decoded.has_value());
    if (decoded) sent_.frames[to].push_back(std::move(*decoded));
    return {};
  }
  void close() override {}

 private:
  Sent& sent_;
};

class GroupFanOutTest : public ::testing::Test {
 protected:
  GroupFanOutTest() {
    for (const int32_t rank : {0, 1}) {
      ipc::Hello hello;
      hello.rank = rank;
      members.join(peer(rank), hello).welcome.group_token = "group-5";
    }
  }
  static ipc::PeerId peer(int32_t rank) { return "peer-" + std::to_string(rank); }
  const ipc::DecodedFrame& last(int32_t rank) { return sent.frames[peer(rank)].back(); }

  Sent sent;
  std::vector<int32_t> told;
  GroupMembership members{{2, "build", "digest"}, 5};
  GroupFanOut fan_out{std::make_unique<KeepingEndpoint>(sent), members,
                      [this](int32_t rank, const Error&) { told.push_back(rank); }};
};

using FanOut = GroupFanOutTest;

TEST_F(FanOut, AWelcomeIsRepeatedUnderOneNumberUntilItIsAnswered_R3) {
  fan_out.beat_all();
  fan_out.beat_all();
  ASSERT_EQ(sent.frames[peer(0)].size(), 2u);
  for (const auto& frame : sent.frames[peer(0)]) {
    EXPECT_TRUE(std::holds_alternative<ipc::Welcome>(frame.message));
    EXPECT_EQ(frame.info.sequence, 1u);
    EXPECT_EQ(frame.info.epoch, 5u);
  }
  members.find(0)->spoke = true;
  fan_out.beat_all();
  EXPECT_TRUE(std::holds_alternative<ipc::Heartbeat>(last(0).message));
  EXPECT_EQ(last(0).info.sequence, 2u);
  EXPECT_TRUE(std::holds_alternative<ipc::Welcome>(last(1).message));
}

TEST_F(FanOut, EveryRankHasNumbersOfItsOwn_R3) {
  members.find(1)->sent = 3;
  fan_out.broadcast(ipc::InitCache{{40}});
  EXPECT_EQ(last(0).info.sequence, 1u);
  EXPECT_EQ(last(1).info.sequence, 4u);
}

TEST_F(FanOut, ARankThatTakesNoMessagesIsToldOfAndTheOthersGetTheirs_I8) {
  sent.deaf.insert(peer(0));
  fan_out.broadcast(ipc::InitCache{{40}});
  EXPECT_EQ(told, std::vector<int32_t>{0});
  EXPECT_EQ(sent.frames[peer(1)].size(), 1u);
}

TEST_F(FanOut, AStepIsInFlightUntilAllRanksHaveAnsweredIt) {
  ipc::Step step;
  step.step = 1;
  fan_out.send_step(step, TimePoint{});
  EXPECT_TRUE(std::holds_alternative<ipc::Step>(last(1).message));
  EXPECT_EQ(fan_out.steps().oldest(), 1u);
  ipc::StepResult answer;
  answer.step = 1;
  answer.rank = 1;
  const auto first = fan_out.answer(1, answer, TimePoint{});
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(first->has_value());
  answer.rank = 0;
  const auto second = fan_out.answer(0, answer, TimePoint{});
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->has_value());
  EXPECT_TRUE(fan_out.steps().empty());
}

TEST_F(FanOut, AllAreToldToGoAndNobodyIsBlamedForBeingGone_R8) {
  sent.deaf.insert(peer(0));
  fan_out.shut_down("the end");
  EXPECT_TRUE(told.empty());
  EXPECT_TRUE(std::holds_alternative<ipc::Shutdown>(last(1).message));
}

}  // namespace
}  // namespace refrain
