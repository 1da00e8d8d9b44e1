// Hung steps are found by their ranks' positions, and the rank that the others wait for is named
// (R-7, I8).
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EngineWorld;
using Ranks = std::vector<int32_t>;

// Two ranks that hold their answers back and tell their positions as a worker does, every 250 ms.
struct HangWorld : EngineWorld {
  struct Place {
    StepId step = 0;
    uint64_t launches = 0;
  };
  HangWorld() : EngineWorld(2) {}

  // Steps of one token that take so long, one rank a launch behind the other.
  void begin(Duration step_takes) {
    start_ready();
    hold(true);
    submit({7}, 50);
    scheduler.run_until_idle();
    for (int i = 0; i < 20; ++i) {
      const StepId done = ranks[0]->steps.size() > 1 ? ranks[0]->steps.back().step - 2 : 0;
      for (Duration left = step_takes; left > Duration::zero(); left -= milliseconds(250)) {
        ++launches;
        live(std::min<Duration>(left, milliseconds(250)), {done, launches}, {done, launches});
      }
      answer_all();
    }
    ASSERT_EQ(engine->stats().state, GroupState::kReady) << details.back();
  }
  void hold(bool answers) {
    for (const auto& rank : ranks) rank->hold_answers = answers;
  }
  void answer_all() {
    for (const auto& rank : ranks) rank->answer();
    scheduler.run_until_idle();
  }
  void live(Duration time, Place first, Place second) {
    tell(0, first);
    tell(1, second);
    scheduler.advance(time);
  }
  void tell(size_t rank, Place place) {
    if (!ranks[rank]->dead) ranks[rank]->say(ipc::Position{place.step, place.launches, true});
  }
  // Time until the group is lost while the ranks tell the same again and again.
  Duration until_lost(Place first, Place second, Duration most = seconds(60)) {
    const TimePoint begun = scheduler.clock().now();
    while (losses.empty() && scheduler.clock().now() - begun < most)
      live(milliseconds(50), first, second);
    return scheduler.clock().now() - begun;
  }
  uint64_t launches = 0;
};

TEST(WorkerGroup, AStepInWhichNobodyGetsOnIsFoundInTwoSecondsAndTheRankBehindIsNamed_R7_I8) {
  HangWorld world;
  world.begin(milliseconds(500));  // the step's own deadline is 10 s
  // Rank 1 spins before its first launch; rank 0 waits for it in a collective.
  const Duration took = world.until_lost({40, 84}, {40, 0});
  EXPECT_LE(took, Duration(seconds(2)));
  EXPECT_GE(took, Duration(milliseconds(1500)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "progress");
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
  EXPECT_NE(world.losses[0].reason.find("held up by rank 1 (pid 101"), std::string::npos)
      << world.losses[0].reason;
  EXPECT_NE(world.losses[0].reason.find("rank 0 is 84 launches past step 40"), std::string::npos);
}

TEST(WorkerGroup, ARankThatDropsStepsIsNamedThoughItsHeartbeatsGoOn_R7_I8) {
  HangWorld world;
  world.begin(milliseconds(500));
  world.ranks[0]->silent = true;  // its device loop waits
  EXPECT_LE(world.until_lost({40, 12}, {40, 0}), Duration(seconds(2)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
}

// Adapters are loaded in the device loop: steps behind that wait for it as long as it gets on.
TEST(WorkerGroup, AStepBehindAnAdapterThatIsBeingLoadedHasItsTimeAnew_R7) {
  HangWorld world;
  world.begin(milliseconds(500));
  for (const auto& rank : world.ranks) rank->loads_late = true;
  world.engine->load_adapter({"sql", "sql", "digest", "", false}, [](const Status&) {});
  world.scheduler.run_until_idle();
  ASSERT_EQ(world.ranks[0]->adapters.size(), 1u);
  for (int i = 0; i < 200; ++i) {  // 20 s in which each loop beats and no launch is made
    for (const auto& rank : world.ranks) rank->say(ipc::Heartbeat{.last_step = 40});
    world.live(milliseconds(100), {40, 0}, {40, 0});
  }
  EXPECT_TRUE(world.losses.empty());
  // Rank 1 hangs in its load: it is found as in a step.
  const TimePoint begun = world.scheduler.clock().now();
  for (const auto& rank : world.ranks) rank->silent = true;
  world.ranks[0]->say(ipc::AdapterLoaded{world.ranks[0]->adapters[0], ""});
  world.until_lost({40, 84}, {40, 0});
  EXPECT_LE(world.scheduler.clock().now() - begun, Duration(seconds(3)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
}

TEST(WorkerGroup, AStoppedRankIsFoundDuringAStepOfUnknownLength_R7_I8) {
  HangWorld world;
  world.start_ready();
  world.hold(true);
  world.submit({7}, 50);
  world.scheduler.run_until_idle();
  world.live(milliseconds(100), {0, 5}, {0, 7});
  world.ranks[1]->dead = true;  // ahead of the other when it was stopped
  EXPECT_LE(world.until_lost({0, 8}, {}), Duration(milliseconds(2100)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
}

TEST(WorkerGroup, AStoppedRankIsNamedWhereverItWas_R7_I8) {
  HangWorld world;
  world.begin(milliseconds(500));
  world.live(milliseconds(100), {40, 5}, {40, 7});
  world.ranks[1]->dead = true;
  EXPECT_LE(world.until_lost({40, 5}, {}), Duration(seconds(2)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "progress");
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
  EXPECT_NE(world.losses[0].reason.find("silent for 1."), std::string::npos);
}

TEST(WorkerGroup, WhereNobodyStandsOutAllPositionsAreTold_R12_I8) {
  HangWorld world;
  world.begin(milliseconds(500));
  world.until_lost({40, 84}, {40, 84});
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, (Ranks{0, 1}));
  const std::string& reason = world.losses[0].reason;
  EXPECT_NE(reason.find("nobody stands out"), std::string::npos) << reason;
  EXPECT_NE(reason.find("rank 0 is 84 launches past step 40, rank 1 is 84"), std::string::npos);
}

TEST(WorkerGroup, ARankThatHasAnsweredIsNotWaitedFor_I8) {
  HangWorld world;
  world.begin(milliseconds(500));
  world.ranks[0]->answer();  // and its next position is not heard of yet
  world.until_lost({40, 0}, {40, 84});
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
}

// A rank at work is no hang, however long the step takes beyond the usual.
TEST(WorkerGroup, AStepThatGetsOnHasItsWholeDeadline_R7) {
  HangWorld world;
  world.begin(milliseconds(500));
  for (uint64_t i = 0; i < 6; ++i) world.live(milliseconds(1500), {40, 84}, {40, i});
  EXPECT_TRUE(world.losses.empty());
  world.until_lost({40, 84}, {40, 6}, seconds(2));
  EXPECT_EQ(world.losses.size(), 1u);
}

TEST(WorkerGroup, OneLaunchMayTakeAsLongAsTheStepsOfItsSize_R7) {
  HangWorld world;
  world.begin(seconds(5));
  EXPECT_GT(world.until_lost({40, 84}, {40, 84}, milliseconds(4500)), Duration(milliseconds(4400)));
  EXPECT_TRUE(world.losses.empty());
}

TEST(WorkerGroup, AFirstStepThatStandsStillIsFoundInSeconds_R7) {
  HangWorld world;
  world.start_ready();
  world.hold(true);
  world.submit({7}, 50);
  world.scheduler.run_until_idle();
  const Duration took = world.until_lost({0, 3}, {0, 3});
  EXPECT_GT(took, Duration(milliseconds(4500)));
  EXPECT_LT(took, Duration(milliseconds(5500)));
}

// As on a slow host: a launch every four seconds, a minute long.
TEST(WorkerGroup, AFirstStepThatGetsOnSlowlyIsNoHang_R7) {
  HangWorld world;
  world.start_ready();
  world.hold(true);
  world.submit({7}, 50);
  world.scheduler.run_until_idle();
  for (uint64_t launch = 0; launch < 15; ++launch)
    for (int i = 0; i < 16; ++i) world.live(milliseconds(250), {0, launch}, {0, 3});
  EXPECT_TRUE(world.losses.empty());
}

// Devices that count no launches, as GPUs: nothing but time tells.
TEST(WorkerGroup, AFirstStepOfRanksThatDoNotTellIsFoundInSeconds_R7) {
  HangWorld world;
  world.start_ready();
  world.hold(true);
  world.submit({7}, 50);
  world.scheduler.run_until_idle();
  const TimePoint begun = world.scheduler.clock().now();
  while (world.losses.empty() && world.scheduler.clock().now() - begun < seconds(30)) {
    for (const auto& rank : world.ranks)
      if (!rank->dead) rank->say(ipc::Position{0, 1, false});
    world.scheduler.advance(milliseconds(50));
  }
  const Duration took = world.scheduler.clock().now() - begun;
  EXPECT_GT(took, Duration(milliseconds(7900)));
  EXPECT_LT(took, Duration(milliseconds(8500)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "step deadline");
}

// Positions come from the control thread: they go on when the device loop hangs.
TEST(WorkerGroup, PositionsAreNoHeartbeat_R7) {
  HangWorld world;
  world.start_ready();
  for (int i = 0; i < 20; ++i) world.live(milliseconds(250), {0, 0}, {0, 0});
  ASSERT_TRUE(world.losses.empty());
  world.ranks[1]->silent = true;
  EXPECT_LE(world.until_lost({0, 0}, {0, 0}), Duration(milliseconds(2600)));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "heartbeat");
  EXPECT_EQ(world.losses[0].ranks, Ranks{1});
}

TEST(WorkerGroup, AStallOfTheCoordinatorIsNoStandstillOfTheRanks_R7) {
  HangWorld world;
  world.begin(milliseconds(500));
  world.live(milliseconds(250), {40, 84}, {40, 10});
  world.scheduler.jump(seconds(30));
  world.live(milliseconds(250), {40, 84}, {40, 10});
  world.live(milliseconds(1250), {40, 84}, {40, 10});
  EXPECT_TRUE(world.losses.empty());
  world.answer_all();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

}  // namespace
}  // namespace refrain
