// Who of the ranks keeps the others waiting (R-7, I8).
#include "runtime/engine/rank_positions.h"

#include <gtest/gtest.h>

#include "runtime/engine/step_gather.h"

namespace refrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kStart = TimePoint{} + seconds(1000);
using Ranks = std::vector<int32_t>;

// All heard at the start, at these (last step, launches since).
RankPositions positions(const std::vector<std::pair<StepId, uint64_t>>& places) {
  RankPositions ranks(static_cast<int32_t>(places.size()));
  for (int32_t rank = 0; rank < static_cast<int32_t>(places.size()); ++rank) {
    const auto& [step, launches] = places[static_cast<size_t>(rank)];
    ranks.heard(rank, kStart);
    ranks.report(rank, {step, launches, true}, kStart);
  }
  return ranks;
}

TEST(RankPositions, TheRankThatIsFurthestBehindLags_I8) {
  EXPECT_EQ(positions({{11, 84}, {11, 0}}).laggards({0, 1}, kStart), Ranks{1});
  EXPECT_EQ(positions({{11, 84}, {12, 3}}).laggards({0, 1}, kStart), Ranks{0});
  EXPECT_EQ(positions({{11, 84}, {11, 83}, {11, 84}}).laggards({0, 1, 2}, kStart), Ranks{1});
  EXPECT_EQ(positions({{11, 84}, {11, 0}}).laggards({0}, kStart), Ranks{0}) << "of those asked for";
}

TEST(RankPositions, EqualRanksAreAllNamed_I8) {
  EXPECT_EQ(positions({{11, 84}, {11, 84}}).laggards({0, 1}, kStart), (Ranks{0, 1}));
  EXPECT_EQ(positions({{11, 85}, {11, 84}, {11, 84}}).laggards({0, 1, 2}, kStart), (Ranks{1, 2}));
  EXPECT_EQ(RankPositions(2).laggards({0, 1}, TimePoint{}), (Ranks{0, 1})) << "nothing is known";
}

TEST(RankPositions, ASilentProcessLagsWhereverItLastWas_I8) {
  RankPositions ranks = positions({{11, 84}, {12, 3}});
  const TimePoint later = kStart + seconds(2);
  ranks.heard(0, later);
  EXPECT_EQ(ranks.laggards({0, 1}, later), Ranks{1});
  EXPECT_EQ(ranks.text(later),
            "rank 0 is 84 launches past step 11, rank 1 is 3 launches past step 12 and silent for "
            "2.0 s");
  ranks.restart(later);
  EXPECT_EQ(ranks.laggards({0, 1}, later), Ranks{0});
}

TEST(RankPositions, ProgressIsAChangeOfAnyPosition_R7) {
  RankPositions ranks = positions({{11, 84}, {11, 0}});
  EXPECT_EQ(ranks.last_progress(), kStart);
  ranks.report(0, {11, 84, true}, kStart + seconds(1));
  EXPECT_EQ(ranks.last_progress(), kStart);
  ranks.report(1, {11, 1, true}, kStart + seconds(2));
  EXPECT_EQ(ranks.last_progress(), kStart + seconds(2));
  ranks.report(0, {12, 0, true}, kStart + seconds(3));
  EXPECT_EQ(ranks.last_progress(), kStart + seconds(3));
}

TEST(RankPositions, NothingIsSaidOfProgressUntilEveryRankCountsIt_R7) {
  RankPositions ranks(2);
  ranks.report(0, {11, 84, true}, kStart);
  EXPECT_FALSE(ranks.last_progress().has_value());
  ranks.report(1, {11, 0, false}, kStart);
  EXPECT_FALSE(ranks.last_progress().has_value());
  EXPECT_NE(ranks.text(kStart).find("rank 1 is past step 11"), std::string::npos);
  ranks.report(1, {11, 0, true}, kStart);
  EXPECT_TRUE(ranks.last_progress().has_value());
}

TEST(StepDeadline, AStallMayLastAsLongAsAWholeStep_R7) {
  StepDeadline deadline;
  constexpr Duration kOneToken = StepDeadline::kUnknownStall + StepDeadline::kUnknownStallToken;
  EXPECT_EQ(deadline.stall(1), kOneToken);
  EXPECT_EQ(deadline.stall(2048), Duration(milliseconds(5000 + 2048 * 20)))
      << "one launch of a prompt";
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) deadline.observe(1, milliseconds(5));
  EXPECT_EQ(deadline.stall(1), Duration(StepDeadline::kLeastStall));
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) deadline.observe(512, seconds(4));
  EXPECT_EQ(deadline.stall(512), Duration(seconds(4)));
  EXPECT_EQ(deadline.stall(100), Duration(seconds(4))) << "as the next larger size";
  EXPECT_LT(deadline.stall(512), deadline.of(512));
}

TEST(StepGather, AStallBeginsWithTheLastProgressOfTheStep_R7) {
  StepGather gather(1);
  ipc::Step step;
  step.runs.resize(1);
  step.step = 1;
  step.runs[0].rows.token_ids.resize(1);
  gather.sent(step, kStart);
  const Duration limit = StepDeadline::kUnknownStall + StepDeadline::kUnknownStallToken;
  EXPECT_EQ(gather.stalled(kStart - seconds(100)), kStart + limit) << "idle before it came";
  EXPECT_EQ(gather.stalled(kStart + seconds(5)), kStart + seconds(5) + limit);
}

// Limits that are too narrow for the workers must not end one group after another.
TEST(StepGather, AfterAHangTheLimitsDoubleUntilStepsAreDoneAgain_R7) {
  StepGather gather(1);
  StepId id = 0;
  const auto send = [&] {
    ipc::Step step;
    step.runs.resize(1);
    step.step = ++id;
    step.runs[0].rows.token_ids.resize(1);
    gather.sent(step, kStart);
  };
  const auto answer = [&] {
    ipc::StepResult result;
    result.step = id;
    ASSERT_TRUE(gather.add(0, result, kStart));
  };
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) {
    send();
    answer();
  }
  send();
  EXPECT_EQ(gather.stalled(kStart), kStart + StepDeadline::kLeastStall);
  gather.begin_group(false);
  EXPECT_TRUE(gather.empty());
  send();
  EXPECT_EQ(gather.stalled(kStart), kStart + StepDeadline::kLeastStall) << "what is known stays";
  for (const int times : {2, 4, 8, 16, 16}) {
    gather.begin_group(true);
    send();
    EXPECT_EQ(gather.stalled(kStart), kStart + times * StepDeadline::kLeastStall);
    EXPECT_EQ(gather.deadline(), kStart + times * StepDeadline::kLeast);
  }
  for (size_t i = 0; i < StepDeadline::kEnough; ++i) {
    EXPECT_GT(gather.stalled(kStart), kStart + StepDeadline::kLeastStall);
    answer();
    send();
  }
  EXPECT_EQ(gather.stalled(kStart), kStart + StepDeadline::kLeastStall);
}

}  // namespace
}  // namespace refrain
