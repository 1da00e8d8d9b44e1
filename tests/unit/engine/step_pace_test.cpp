// When the next step is planned, from how long steps like the one that runs took.
#include "runtime/engine/step_pace.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

using std::chrono::milliseconds;

ipc::Step step_of(ipc::ForwardMode mode, size_t tokens) {
  ipc::Step step;
  step.mode = mode;
  step.token_ids.assign(tokens, 1);
  return step;
}

struct StepPaceTest : testing::Test {
  StepPace pace;
  TimePoint now{};

  // Steps that each wait behind another and take `took`; one is left in flight.
  void run(ipc::ForwardMode mode, size_t tokens, Duration took, int count) {
    if (!in_flight) pace.sent(step_of(mode, tokens), now);
    in_flight = true;
    for (int i = 0; i < count; ++i) {
      pace.sent(step_of(mode, tokens), now);
      now += took;
      pace.done(now);
    }
  }
  bool in_flight = false;
};

TEST_F(StepPaceTest, SaysNothingOfStepsItHasNotSeen) {
  EXPECT_FALSE(pace.plan_at(Duration::zero()));
  run(ipc::ForwardMode::kDecode, 8, milliseconds(8), 3);
  EXPECT_FALSE(pace.plan_at(Duration::zero())) << "too few";
  run(ipc::ForwardMode::kDecode, 8, milliseconds(8), 2);
  EXPECT_TRUE(pace.plan_at(Duration::zero()));
  pace.sent(step_of(ipc::ForwardMode::kDecode, 64), now);
  pace.done(now);
  EXPECT_FALSE(pace.plan_at(Duration::zero())) << "64 rows are not 8";
}

TEST_F(StepPaceTest, PlansTheLeadAndASixteenthBeforeTheExpectedEnd) {
  run(ipc::ForwardMode::kDecode, 8, milliseconds(16), 8);
  EXPECT_EQ(*pace.plan_at(milliseconds(1)) - now, milliseconds(14));
}

TEST_F(StepPaceTest, ScalesAPromptsStepByItsTokens) {
  run(ipc::ForwardMode::kExtend, 1000, milliseconds(16), 8);
  pace.sent(step_of(ipc::ForwardMode::kMixed, 1100), now);
  now += milliseconds(16);
  pace.done(now);
  const Duration left = *pace.plan_at(Duration::zero()) - now;
  EXPECT_NEAR(seconds_of(left), 0.016 * 1.1 * 15 / 16, 1e-6);
}

TEST_F(StepPaceTest, BelievesFasterStepsSoonerThanSlowerOnes) {
  run(ipc::ForwardMode::kDecode, 8, milliseconds(16), 8);
  run(ipc::ForwardMode::kDecode, 8, milliseconds(32), 1);
  EXPECT_LT(*pace.plan_at(Duration::zero()) - now, milliseconds(17));
  run(ipc::ForwardMode::kDecode, 8, milliseconds(8), 3);
  EXPECT_LT(*pace.plan_at(Duration::zero()) - now, milliseconds(9));
}

TEST_F(StepPaceTest, LearnsNothingFromAStepThatNoOtherWaitedFor) {
  for (int i = 0; i < 9; ++i) {
    pace.sent(step_of(ipc::ForwardMode::kDecode, 8), now);
    now += milliseconds(20);
    pace.done(now);
  }
  pace.sent(step_of(ipc::ForwardMode::kDecode, 8), now);
  EXPECT_FALSE(pace.plan_at(Duration::zero())) << "its time holds the way to the workers";
}

TEST_F(StepPaceTest, ForgetsWhatIsInFlightAndKeepsWhatItKnows) {
  run(ipc::ForwardMode::kDecode, 8, milliseconds(16), 8);
  pace.clear();
  EXPECT_FALSE(pace.plan_at(Duration::zero()));
  pace.sent(step_of(ipc::ForwardMode::kDecode, 8), now);
  EXPECT_EQ(*pace.plan_at(Duration::zero()) - now, milliseconds(15));
}

}  // namespace
}  // namespace refrain
