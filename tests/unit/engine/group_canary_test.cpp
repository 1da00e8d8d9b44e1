// What a group's service asks of its parts: when a canary goes, when the next step is planned, what
// the schedulers of all epochs have counted.
#include "runtime/engine/group_canary.h"

#include <gtest/gtest.h>

#include "runtime/actor/manual_executor.h"
#include "runtime/engine/group_counts.h"
#include "runtime/engine/plan_timer.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class GroupCanaryTest : public ::testing::Test {
 protected:
  GroupCanaryTest() {
    canary.connect(run_later(executor, std::weak_ptr(alive)));
    canary.begin(scheduler);
  }
  static SchedulerOptions options() {
    SchedulerOptions options;
    options.groups = {{.name = "full_attention", .num_blocks = 9}};
    return options;
  }
  // The workers answer what was planned, with this token.
  std::optional<bool> answer(TokenId token) {
    const StepPlan* plan = scheduler.schedule();
    if (plan == nullptr) return std::nullopt;
    ipc::StepResult result;
    result.step = plan->step().step;
    result.tokens = {token};
    result.token_offsets = {0, 1};
    events.clear();
    EXPECT_TRUE(scheduler.update(result, events));
    canary.answered(manual.clock().now());
    return canary.take(events);
  }

  ManualScheduler manual;
  std::shared_ptr<Executor> executor = manual.make_executor("engine");
  std::shared_ptr<int> alive = std::make_shared<int>();
  Scheduler scheduler{options()};
  std::vector<TokenEvent> events;
  int pumped = 0;
  GroupCanary canary{*executor, [this] { ++pumped; }};
};

TEST_F(GroupCanaryTest, GoesWhenNoStepWasAnsweredForAWhile_R11) {
  manual.advance(GroupCanary::kAfter - milliseconds(1));
  EXPECT_FALSE(canary.out());
  canary.answered(manual.clock().now());
  manual.advance(seconds(1));
  EXPECT_FALSE(canary.out());
  manual.advance(GroupCanary::kAfter);
  EXPECT_TRUE(canary.out());
  EXPECT_EQ(pumped, 1);
  manual.advance(3 * GroupCanary::kAfter);  // one at a time
  EXPECT_EQ(scheduler.num_unfinished(), 1u);
  EXPECT_EQ(answer(5), true);
  EXPECT_FALSE(canary.out());
  EXPECT_TRUE(events.empty()) << "no client hears of it";
}

TEST_F(GroupCanaryTest, OneWithoutALogitIsBad_R22) {
  canary.send();
  EXPECT_EQ(answer(ipc::kNoFiniteLogit), false);
  EXPECT_EQ(canary.take(events), std::nullopt);
}

TEST_F(GroupCanaryTest, WorkersThatAreGoneAreNotWatched) {
  canary.send();
  canary.end();
  EXPECT_FALSE(canary.out());
  manual.advance(3 * GroupCanary::kAfter);
  EXPECT_EQ(pumped, 0);
}

TEST_F(GroupCanaryTest, ItsTimersEndWithTheirActor) {
  alive.reset();
  manual.advance(3 * GroupCanary::kAfter);
  EXPECT_EQ(pumped, 0);
}

TEST(PlanTimer, AStepIsPlannedShortlyBeforeTheOneInFlightEnds) {
  ManualScheduler manual;
  const auto executor = manual.make_executor("engine");
  const auto alive = std::make_shared<int>();
  StepPace pace(64);
  ipc::Step step;
  step.runs.resize(1);
  ipc::Rows& rows = step.runs[0].rows;
  rows.slot = {0};
  rows.num_tokens = {1};
  rows.computed = {4};
  rows.token_ids = {kTokenOnDevice};
  rows.flags = {ipc::kSamples};
  step.runs[0].mode = ipc::ForwardMode::kDecode;
  pace.sent(step, manual.clock().now());
  for (int i = 0; i < 8; ++i) {  // until the pace of such steps is known
    pace.sent(step, manual.clock().now());
    manual.advance(milliseconds(100));
    pace.done(manual.clock().now());
  }
  int due = 0;
  PlanTimer timer(*executor, pace, milliseconds(10), [&] { ++due; });
  timer.connect(run_later(executor, std::weak_ptr(alive)));
  timer.planned(/*requests_wait=*/true);  // one that comes waits behind them in any case
  EXPECT_FALSE(timer.too_early());
  timer.planned(/*requests_wait=*/false);
  EXPECT_TRUE(timer.too_early());
  EXPECT_TRUE(timer.too_early());
  manual.advance(milliseconds(50));
  EXPECT_EQ(due, 0);
  manual.advance(milliseconds(45));
  EXPECT_EQ(due, 1);
  EXPECT_FALSE(timer.too_early());
  pace.done(manual.clock().now());
  EXPECT_FALSE(timer.too_early());  // nothing is in flight
}

TEST(GroupCounts, CountsGoOnOverEpochsAndWhatIsNowDoesNot) {
  GroupCounts counts;
  SchedulerStats stats;
  stats.preemptions = 2;
  stats.transfers.done = 3;
  stats.transfers.running = 1;
  stats.leases = 4;
  counts.add(stats);
  stats.leases = 1;
  stats.running = 5;
  GroupStats told;
  counts.fill(stats, /*gated=*/2, nullptr, told);
  EXPECT_EQ(told.preemptions, 4u);
  EXPECT_EQ(told.transfers.done, 6u);
  EXPECT_EQ(told.transfers.running, 1u);
  EXPECT_EQ(told.leases, 1u);
  EXPECT_EQ(told.requests_running, 5u);
  EXPECT_EQ(told.requests_waiting, 2u);
  const Sequence canary(kCanaryRequest, {0}, {});  // it waits
  stats.waiting = 1;
  counts.fill(stats, 0, &canary, told);
  EXPECT_EQ(told.requests_waiting, 0u);
}

}  // namespace
}  // namespace refrain
