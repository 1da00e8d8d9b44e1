// CG-17: groups whose workers exchange something in each step take their steps in rounds. Each
// round has a step of every group, and all are told the sizes of all.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/engine_actor/two_groups.h"

namespace refrain::testing {
namespace {

class Rounds : public TwoGroups {
 protected:
  Rounds() { steps_together_ = true; }

  RequestId submit(TokenId first, int64_t count) {
    SamplingParams sampling;
    sampling.max_tokens = count;
    sampling.temperature = 0;
    return world_.submit(group_prompt(first), sampling);
  }
  void expect_equal_rounds() {
    ASSERT_EQ(first_->steps.size(), second_->steps.size());
    for (size_t i = 0; i < first_->steps.size(); ++i) {
      const ipc::Step &one = first_->steps[i], &two = second_->steps[i];
      ASSERT_EQ(one.together.size(), 2u);
      EXPECT_EQ(one.together, two.together);
      EXPECT_EQ(one.together[0], ipc::size_of(one)) << "round " << i;
      EXPECT_EQ(one.together[1], ipc::size_of(two)) << "round " << i;
      EXPECT_GT(one.together[0].num_tokens + one.together[1].num_tokens, 0) << "nobody has a row";
    }
  }
};

TEST_F(Rounds, CG17OneThatIsIdleStepsWithTheOther) {
  start_both();
  const RequestId id = submit(10, 12);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].tokens, world_.expected(group_prompt(10), 12));
  expect_equal_rounds();
  EXPECT_EQ(group(0).generated_tokens + group(1).generated_tokens, 12u);
  const MockRank& idle = group(0).generated_tokens > 0 ? *second_ : *first_;
  const auto rows = [](const ipc::Step& step) { return step.runs.front().rows.slot.size(); };
  EXPECT_GE(std::ranges::count_if(idle.steps, [&](const auto& step) { return rows(step) == 0; }),
            12);
}

TEST_F(Rounds, CG17BothServeInCommonRounds) {
  start_both();
  std::vector<RequestId> ids;
  for (TokenId first = 10; first < 18; ++first) ids.push_back(submit(first, 8));
  world_.scheduler.run_until_idle();
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(world_.answers[ids[i]].tokens,
              world_.expected(group_prompt(static_cast<TokenId>(10 + i)), 8));
  expect_equal_rounds();
  EXPECT_EQ(group(0).generated_tokens, group(1).generated_tokens);
}

TEST_F(Rounds, CG17NobodyStepsBeforeAllAreThere) {
  world_.start();
  first_ = &add_worker(0);
  world_.scheduler.run_until_idle();
  const RequestId id = submit(10, 8);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(first_->steps.empty());
  second_ = &add_worker(1);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].tokens, world_.expected(group_prompt(10), 8));
  expect_equal_rounds();
}

// The other's step would wait for it: its workers go too, as no fault of theirs, and the requests
// of both go on when all are back.
TEST_F(Rounds, CG17WhoLosesOneLosesAll_R8) {
  start_both();
  std::vector<RequestId> ids;
  for (TokenId first = 10; first < 14; ++first) ids.push_back(submit(first, 30));
  first_->ends_with = [](const ipc::Step& step) { return step.step > 9; };
  world_.scheduler.run_until_idle();
  ASSERT_TRUE(first_->dead);
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).state, GroupState::kWaiting);
  EXPECT_EQ(group(1).state, GroupState::kWaiting);
  EXPECT_EQ(group(0).group_restarts, 1u);
  EXPECT_EQ(group(1).group_restarts, 0u);
  ASSERT_EQ(world_.losses.size(), 2u);
  EXPECT_FALSE(world_.losses[0].planned);
  EXPECT_TRUE(world_.losses[1].planned);
  first_ = &add_worker(0);
  second_ = &add_worker(1);
  world_.scheduler.run_until_idle();
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(world_.answers[ids[i]].tokens,
              world_.expected(group_prompt(static_cast<TokenId>(10 + i)), 30));
  expect_equal_rounds();
}

TEST_F(Rounds, CG17OneThatIsGivenUpEndsAll) {
  start_both();
  world_.engine->give_up_group(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).state, GroupState::kFailed);
  EXPECT_EQ(group(1).state, GroupState::kFailed);
  EXPECT_EQ(world_.engine->health().state, GroupState::kFailed);
}

}  // namespace
}  // namespace refrain::testing
