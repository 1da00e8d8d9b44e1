// Requests with a grammar run when all workers have compiled it; nobody else waits for that.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/engine_actor/two_roles.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using testing::EngineWorld;
using testing::prompt_of;
using testing::Roles;

class GrammarGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    world_.start_ready();
    for (const auto& rank : world_.ranks) rank->compiles_late = true;
    constrained_ = submit("regex:[a-z]+");
  }
  RequestId submit(const char* grammar) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = 6;
    sampling.grammar = grammar;
    const RequestId id = world_.submit(prompt_of(6), sampling);
    world_.scheduler.run_until_idle();
    return id;
  }
  void compiled(int32_t rank, RequestId id) {
    world_.newest(rank).say(ipc::GrammarReady{id});
    world_.scheduler.run_until_idle();
  }
  bool ended(RequestId id) { return world_.answers[id].finishes == 1; }

  EngineWorld world_{2};
  RequestId constrained_ = 0;
};

TEST_F(GrammarGateTest, RunsWhenAllRanksHaveCompiledItAndOthersMeanwhile) {
  EXPECT_THAT(world_.ranks[1]->grammars, ElementsAre(constrained_));
  EXPECT_EQ(world_.engine->stats().requests_waiting, 1u);
  EXPECT_TRUE(ended(submit("")));
  compiled(0, constrained_);
  EXPECT_FALSE(ended(constrained_));
  compiled(1, constrained_);
  EXPECT_TRUE(ended(constrained_));
  EXPECT_EQ(world_.answers[constrained_].tokens, world_.expected(prompt_of(6), 6));
  EXPECT_TRUE(world_.all_blocks_free());
}

TEST_F(GrammarGateTest, IsForgottenWhenItsClientLeaves) {
  world_.engine->cancel(constrained_);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(ended(constrained_));
  for (const int32_t rank : {0, 1}) compiled(rank, constrained_);
  EXPECT_EQ(world_.answers[constrained_].finishes, 1);
  EXPECT_EQ(world_.engine->stats().requests_waiting, 0u);
}

// The next workers have compiled nothing yet.
TEST_F(GrammarGateTest, IsCompiledAgainByTheNextWorkers_R8) {
  compiled(0, constrained_);
  world_.lose(*world_.ranks[0]);
  world_.add_ranks();
  for (const int32_t rank : {0, 1}) world_.newest(rank).compiles_late = true;
  world_.scheduler.run_until_idle();
  EXPECT_THAT(world_.newest(0).grammars, ElementsAre(constrained_));
  compiled(1, constrained_);
  EXPECT_FALSE(ended(constrained_));
  compiled(0, constrained_);
  EXPECT_TRUE(ended(constrained_));
}

// In the middle of its answer, with the next step in flight, on a rank that tells no tokens.
TEST_F(GrammarGateTest, EndsAloneWhenAnyRankCannotFollowIt) {
  for (const int32_t rank : {0, 1}) compiled(rank, constrained_);
  for (const auto& rank : world_.ranks) rank->compiles_late = false;
  world_.newest(1).too_slow = [once = true](const ipc::Step& step, size_t row) mutable {
    return step.runs[0].rows.computed[row] == 8 && std::exchange(once, false);
  };
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = 6;
  sampling.grammar = "regex:[a-z]+";
  const RequestId slow = world_.submit(prompt_of(6), sampling),
                  other = world_.submit(prompt_of(6), sampling);
  world_.scheduler.run_until_idle();
  const auto& answer = world_.answers[slow];
  EXPECT_EQ(answer.finishes, 1);
  ASSERT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.error->code, ErrorCode::kInvalidArgument);
  EXPECT_NE(answer.error->message.find("cannot be followed in time: after 9 tokens"),
            std::string::npos)
      << answer.error->message;
  EXPECT_EQ(answer.tokens.size(), 3u);
  EXPECT_EQ(world_.answers[other].tokens, world_.expected(prompt_of(6), 6));
  EXPECT_EQ(world_.engine->stats().requests_with_slow_grammar, 1u);
  EXPECT_EQ(world_.engine->stats().group_restarts, 0u);
  EXPECT_TRUE(world_.all_blocks_free());
}

TEST_F(Roles, ARequestThatEndsWhileItsGrammarIsCompiledLeavesNothing) {
  start_both();
  prefill_->hold_answers = true;
  decode_->hold_pulls = decode_->compiles_late = true;
  SamplingParams sampling;
  sampling.max_tokens = 12;
  sampling.grammar = "regex:[a-z]+";
  const RequestId id = world_.submit(testing::prompt_from(10), sampling);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  prefill_->hold_answers = false;
  prefill_->answer();
  world_.scheduler.run_until_idle();
  ASSERT_EQ(world_.answers[id].tokens.size(), 1u);
  world_.engine->cancel(id);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->cancelled, std::vector<TransferId>{decode_->pulls[0].id});
  decode_->say(ipc::Pulled{decode_->pulls[0].id, 0, true, "cancelled"});
  world_.scheduler.run_until_idle();
  expect_nothing_left();
}

}  // namespace
}  // namespace refrain
