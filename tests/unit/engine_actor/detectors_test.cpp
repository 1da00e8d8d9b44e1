// What finds a rank that hangs, and what does not count as one.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::contains;
using testing::EngineWorld;
using testing::MockRank;
using testing::MockRankOptions;
using testing::prompt_of;

TEST(WorkerGroup, ASilentRankIsFoundByItsHeartbeatWithinTwoSeconds_R7) {
  EngineWorld world(2);
  world.start_ready();
  world.scheduler.advance(std::chrono::seconds(5));
  ASSERT_EQ(world.engine->stats().state, GroupState::kReady);
  world.ranks[1]->dead = true;
  world.scheduler.advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  world.scheduler.advance(std::chrono::milliseconds(500));
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  EXPECT_TRUE(contains(world.details.back(), "rank 1 (pid 101")) << world.details.back();
  EXPECT_TRUE(contains(world.details.back(), "its last step is ")) << world.details.back();
}

// Nothing ran for a while, on this machine or in this process: what was not heard says nothing.
TEST(WorkerGroup, AStallOfTheCoordinatorKillsNobody_R7) {
  EngineWorld world(2);
  world.start_ready();
  for (const int seconds : {2, 30, 4000}) {
    world.scheduler.advance(std::chrono::seconds(5));
    for (const auto& rank : world.ranks) rank->silent = true;  // its frames are still on their way
    world.scheduler.jump(std::chrono::seconds(seconds));
    world.scheduler.advance(std::chrono::milliseconds(1400));
    EXPECT_EQ(world.engine->stats().state, GroupState::kReady) << world.details.back();
    for (const auto& rank : world.ranks) rank->silent = false;
  }
  world.scheduler.advance(std::chrono::seconds(5));
  EXPECT_EQ(world.engine->stats().group_restarts, 0u);
  world.ranks[1]->silent = true;  // one that died meanwhile has no more than its time anew
  world.scheduler.jump(std::chrono::seconds(30));
  world.scheduler.advance(std::chrono::milliseconds(2100));
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
}

TEST(WorkerGroup, AStallOfTheCoordinatorGivesTheStepInFlightItsTimeAnew_R7) {
  EngineWorld world(1);
  world.start_ready();
  for (int i = 0; i < 3; ++i) {
    world.submit(prompt_of(6), 8);
    world.scheduler.run_until_idle();
  }
  world.ranks[0]->hold_answers = true;
  const RequestId id = world.submit({7}, 1);
  world.scheduler.run_until_idle();
  world.scheduler.jump(std::chrono::seconds(30));
  world.scheduler.advance(std::chrono::milliseconds(1900));
  ASSERT_EQ(world.engine->stats().state, GroupState::kReady) << world.details.back();
  world.ranks[0]->answer();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens.size(), 1u);
}

TEST(WorkerGroup, AStallDuringTheStartDoesNotShortenIt_R7) {
  EngineWorld world(1);
  world.config.start_timeout = 30;
  world.start();
  world.scheduler.run_until_idle();
  world.scheduler.jump(std::chrono::seconds(100));
  world.scheduler.advance(std::chrono::milliseconds(1));
  EXPECT_NE(world.engine->stats().state, GroupState::kFailed);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

// Every step takes as long as the slowest allowed; and what is usual for a size is no hang.
TEST(WorkerGroup, ASlowRankIsNotKilled_R7) {
  EngineWorld world(2);
  world.start_ready();
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  const RequestId id = world.submit({7}, 50);
  world.scheduler.run_until_idle();
  const auto step = [&](Duration late) {
    world.ranks[0]->answer();
    world.scheduler.advance(late);
    world.ranks[1]->answer();
    world.scheduler.run_until_idle();
  };
  for (int i = 0; i < 20; ++i) step(std::chrono::milliseconds(1900));
  for (int i = 0; i < 10; ++i) step(std::chrono::seconds(30));  // below 20 x 1.9 s
  EXPECT_EQ(world.engine->stats().group_restarts, 0u) << world.details.back();
  for (const auto& rank : world.ranks) rank->hold_answers = false;
  for (const auto& rank : world.ranks)
    while (!rank->held.empty()) rank->answer();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected({7}, 50));
}

TEST(WorkerGroup, AStepThatIsNotAnsweredInTwoSecondsNamesTheRanksThatOweIt_R7) {
  EngineWorld world(2);
  world.start_ready();
  for (int i = 0; i < 3; ++i) {  // teaches the deadline of steps of one token
    world.submit(prompt_of(6), 8);
    world.scheduler.run_until_idle();
  }
  world.ranks[1]->hold_answers = true;
  const RequestId id = world.submit({7}, 8);
  world.scheduler.run_until_idle();
  world.scheduler.advance(std::chrono::milliseconds(1900));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  world.scheduler.advance(std::chrono::milliseconds(200));
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  EXPECT_TRUE(contains(world.details.back(), "rank 1 (pid 101")) << world.details.back();
  EXPECT_FALSE(contains(world.details.back(), "rank 0 (")) << "not at fault";
  EXPECT_EQ(world.answers[id].finishes, 0) << "it goes on with the next workers";
}

TEST(WorkerGroup, ARankInALongFirstStepIsNotKilled_R7) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId id = world.submit(prompt_of(6), 1);
  world.scheduler.run_until_idle();
  world.scheduler.advance(std::chrono::seconds(60));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  world.ranks[0]->answer();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens.size(), 1u);
}

// Its connection may end before the news of its process comes.
TEST(WorkerGroup, ARankThatTakesNoMessagesIsNamed_R7_I8) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks.pop_back();  // its endpoint is gone, its process is watched
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, std::vector<int32_t>{1});
  EXPECT_EQ(world.losses[0].detector, "connection");
  EXPECT_TRUE(contains(world.losses[0].reason, "rank 1 (pid 101 on here) takes no messages"))
      << world.losses[0].reason;
}

TEST(WorkerGroup, AFrameThatIsLostFencesItsGroup_R3) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks[1]->lose_a_frame();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  world.ranks[1]->say(ipc::Heartbeat{});
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "frames");
  EXPECT_EQ(world.losses[0].ranks, std::vector<int32_t>{1});
}

// A start whose phases go on may take --start-timeout; a rank that does not get on is found in a
// minute.
TEST(WorkerGroup, ARankThatHangsInItsStartIsFoundInAMinuteAndNamedWithItsPhase_R7) {
  for (const bool loading : {true, false}) {
    SCOPED_TRACE(loading);
    EngineWorld world(2);
    world.start();
    world.add_ranks();
    (loading ? world.newest(1).hold_loaded : world.newest(1).hold_ready) = true;
    world.scheduler.advance(std::chrono::seconds(59));
    EXPECT_EQ(world.engine->stats().state, GroupState::kStarting);
    world.scheduler.advance(std::chrono::milliseconds(1600));
    EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
    ASSERT_EQ(world.losses.size(), 1u);
    EXPECT_EQ(world.losses[0].detector, "start");
    EXPECT_EQ(world.losses[0].ranks, std::vector<int32_t>{1});
    EXPECT_FALSE(world.losses[0].for_good);
    EXPECT_EQ(world.losses[0].reason,
              "the start of rank 1 (pid 101 on here) has stood still for 60 s: rank 1: loading "
              "weights 1/1");
    world.add_ranks();
    world.scheduler.advance(std::chrono::seconds(1));
    EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  }
}

TEST(WorkerGroup, AStartThatGetsOnMayTakeItsTime_R7) {
  EngineWorld world(2);
  world.start();
  world.add_ranks();
  world.newest(1).hold_ready = true;
  for (int i = 1; i <= 10; ++i) {
    world.scheduler.advance(std::chrono::seconds(55));
    ASSERT_EQ(world.engine->stats().state, GroupState::kStarting);
    world.newest(1).say(ipc::Progress{ipc::StartPhase::kCapture, i, 10, ""});
  }
  world.newest(1).say(world.newest(1).ready);
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  EXPECT_TRUE(world.losses.empty());
}

// Workers started by hand: one may come long after the other, which waits for it.
TEST(WorkerGroup, ARankThatWaitsForOneThatIsNotHereYetIsNotStuck_R7) {
  EngineWorld world(2);
  world.start();
  MockRankOptions options;
  options.rank = 0;
  options.pid = 71;
  MockRank& first = world.add_rank(options);
  first.hold_ready = true;
  world.scheduler.advance(std::chrono::seconds(300));
  ASSERT_EQ(world.engine->stats().state, GroupState::kStarting);
  options.rank = 1;
  options.pid = 72;
  world.add_rank(options);
  world.scheduler.advance(std::chrono::seconds(2));
  EXPECT_EQ(world.engine->stats().state, GroupState::kStarting);
  first.say(first.ready);
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

// Its pid may be anybody's here, though the machine has the same name: as in another container.
TEST(WorkerGroup, AWorkerOfAnotherRealmIsNotWatchedByItsPid_R29) {
  for (const char* realm : {"here", "elsewhere", ""}) {
    EngineWorld world(1);
    MockRankOptions options;
    options.realm = realm;
    world.start_ready(options);
    EXPECT_EQ(world.watched.size(), realm == std::string("here") ? 1u : 0u) << realm;
  }
}

}  // namespace
}  // namespace refrain
