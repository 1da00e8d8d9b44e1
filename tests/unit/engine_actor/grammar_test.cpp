// Requests with a grammar run when all workers have compiled it; nobody else waits for that.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using testing::EngineWorld;
using testing::prompt_of;

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

}  // namespace
}  // namespace refrain
