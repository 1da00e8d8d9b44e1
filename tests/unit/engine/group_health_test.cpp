// A group's health at given times: without an endpoint, a timer or a clock.
#include "runtime/engine/group_health.h"

#include <gtest/gtest.h>

#include "runtime/engine/engine.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class GroupHealthTest : public ::testing::Test {
 protected:
  GroupHealthTest() {
    health.waits(begin);
    health.expect(begin);
  }
  void join(int32_t rank) {
    ipc::Hello hello;
    hello.rank = rank;
    hello.pid = 100 + rank;
    hello.host = "here";
    members.join("peer", hello);
    health.joined(rank, begin);
  }
  void serve() {
    join(0);
    join(1);
    health.serves(begin);
  }
  void hear(int32_t rank, TimePoint now) {
    health.heard(rank, now);
    health.heard_device(rank, now);
  }
  void send(StepId id, TimePoint now) {
    ipc::Step step;
    step.runs.resize(1);
    step.step = id;
    step.runs[0].rows.token_ids = {1};
    steps.sent(step, now);
  }

  const TimePoint begin = TimePoint{} + seconds(1000);
  GroupMembership members{{2, "build", "digest"}, 1};
  StepGather steps{2};
  GroupHealth health{{milliseconds(500), seconds(2), seconds(600)}, members, steps};
};

using GroupHealthAt = GroupHealthTest;

TEST_F(GroupHealthAt, ASilentRankIsNamedWithItsLastStep_R7) {
  serve();
  health.at_step(1, 7);
  hear(0, begin + seconds(1));
  EXPECT_FALSE(health.check(begin + milliseconds(1999)).has_value());
  const auto fault = health.check(begin + seconds(2));
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->detector, "heartbeat");
  EXPECT_EQ(fault->ranks, std::vector<int32_t>{1});
  EXPECT_FALSE(fault->for_good);
  EXPECT_EQ(fault->reason,
            "rank 1 (pid 101 on here) has been silent for 2.0 s; its last step is 7");
}

TEST_F(GroupHealthAt, TheDeviceLoopMustBeHeardUnlessAStepIsInFlight_R7) {
  serve();
  health.heard_device(0, begin + seconds(2));
  health.heard_device(1, begin + seconds(2));
  health.heard(0, begin + seconds(3));
  health.heard(1, begin + seconds(3));
  EXPECT_TRUE(health.check(begin + seconds(4)).has_value());
  send(1, begin + seconds(2));
  EXPECT_FALSE(health.check(begin + seconds(4)).has_value());
}

TEST_F(GroupHealthAt, IsAskedAgainExactlyWhenARanksTimeIsOver_R7) {
  serve();
  EXPECT_EQ(health.until_check(begin), milliseconds(500));
  EXPECT_EQ(health.until_check(begin + milliseconds(1800)), milliseconds(200));
  EXPECT_EQ(health.until_check(begin + seconds(2)), milliseconds(1));
}

TEST_F(GroupHealthAt, AStepInWhichNobodyGetsOnIsFound_R7_I8) {
  serve();
  ipc::Position position;
  position.counts_launches = true;
  position.launches = 3;
  health.position(0, position, begin);
  position.launches = 1;
  health.position(1, position, begin);
  send(1, begin);
  const TimePoint late = begin + StepDeadline{}.stall(1);
  for (const int32_t rank : {0, 1}) hear(rank, late);
  EXPECT_FALSE(health.check(late - milliseconds(1)).has_value());
  const auto fault = health.check(late);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->detector, GroupHealth::kProgress);
  EXPECT_EQ(fault->ranks, std::vector<int32_t>{1});
}

TEST_F(GroupHealthAt, AStepThatIsNotAnsweredInTimeIsFoundWhereRanksDoNotTell_R7) {
  serve();
  for (const int32_t rank : {0, 1}) health.position(rank, ipc::Position{}, begin);
  send(1, begin);
  const TimePoint late = begin + StepDeadline{}.of(1, false);
  for (const int32_t rank : {0, 1}) hear(rank, late);
  EXPECT_FALSE(health.check(late - milliseconds(1)).has_value());
  const auto fault = health.check(late);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->detector, GroupHealth::kStepDeadline);
}

TEST_F(GroupHealthAt, WhenThisProcessStoodStillNobodyIsAtFault_R7) {
  serve();
  health.expect(begin + milliseconds(500));
  EXPECT_FALSE(health.stood_still(begin + milliseconds(1500)));
  EXPECT_TRUE(health.stood_still(begin + seconds(10)));
  EXPECT_FALSE(health.check(begin + seconds(10)).has_value());
  EXPECT_TRUE(health.check(begin + seconds(12)).has_value());
}

TEST_F(GroupHealthAt, MissingRanksAreNamedWhenTheTimeToStartIsOver) {
  join(0);
  EXPECT_EQ(health.until_start_check(begin), milliseconds(500));
  EXPECT_EQ(health.until_start_check(begin + milliseconds(599900)), milliseconds(100));
  EXPECT_FALSE(health.start_deadline(begin + milliseconds(599999)).has_value());
  const auto fault = health.start_deadline(begin + seconds(600));
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->detector, GroupLoss::kStartTimeout);
  EXPECT_EQ(fault->ranks, std::vector<int32_t>{1});
  EXPECT_TRUE(fault->for_good);
}

TEST_F(GroupHealthAt, ARankThatHangsInItsStartIsNamed_R7) {
  join(0);
  join(1);
  health.moved(0, begin + seconds(30), true);
  EXPECT_FALSE(health.start_stall(begin + seconds(59)).has_value());
  const auto fault = health.start_stall(begin + seconds(61));
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->detector, "start");
  EXPECT_EQ(fault->ranks, std::vector<int32_t>{1});
}

}  // namespace
}  // namespace refrain
