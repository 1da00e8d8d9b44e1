// When the next step is planned and how many prompt tokens it may have, from how long steps took.
#include "runtime/engine/step_pace.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

using std::chrono::milliseconds;

ipc::Step step_of(ipc::ForwardMode mode, size_t tokens) {
  ipc::Step step;
  step.runs.resize(1);
  step.runs[0].mode = mode;
  step.runs[0].rows.token_ids.assign(tokens, 1);
  return step;
}

struct StepPaceTest : ::testing::Test {
  StepPace pace{2048};
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

// Long prompts are rare: a server would plan behind each of the first steps at once, and a request
// that comes during one would miss the step behind it.
TEST_F(StepPaceTest, ExpectsOfARareStepWithPromptsTheTimeATokenOfTheNearestClass) {
  run(ipc::ForwardMode::kExtend, 1000, milliseconds(16), 8);
  const auto left = [&](ipc::ForwardMode mode, size_t tokens) {
    pace.clear();
    pace.sent(step_of(mode, tokens), now);
    const auto at = pace.plan_at(Duration::zero());
    return at ? seconds_of(*at - now) : -1.0;
  };
  EXPECT_NEAR(left(ipc::ForwardMode::kMixed, 1500), 0.016 * 1.5 * 14 / 16, 1e-6);
  EXPECT_NEAR(left(ipc::ForwardMode::kMixed, 600), 0.016 * 0.6 * 15 / 16, 1e-6);
  EXPECT_NEAR(left(ipc::ForwardMode::kMixed, 3000), 0.016 * 3 * 14 / 16, 1e-6);
  EXPECT_NEAR(left(ipc::ForwardMode::kMixed, 40), 0.016 * 0.04 * 15 / 16, 1e-6);
  EXPECT_LT(left(ipc::ForwardMode::kDecode, 1000), 0) << "decodes are of another kind";
  in_flight = false;
  pace.clear();
  run(ipc::ForwardMode::kExtend, 2000, milliseconds(28), 8);
  EXPECT_NEAR(left(ipc::ForwardMode::kMixed, 1500), 0.028 * 0.75 * 15 / 16, 1e-6)
      << "the larger of two";
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

class PromptPaceTest : public ::testing::Test {
 protected:
  // One step of a prompt chunk and some decodes that takes so many milliseconds.
  void run(int32_t chunk, int32_t decodes, int milliseconds) {
    send(chunk, decodes);
    now += std::chrono::milliseconds(milliseconds);
    pace.done(now);
  }
  void send(int32_t chunk, int32_t decodes) {
    ipc::Step step;
    step.runs.resize(1);
    step.runs[0].rows.num_tokens.assign(static_cast<size_t>(decodes), 1);
    if (chunk > 0) step.runs[0].rows.num_tokens.push_back(chunk);
    step.runs[0].rows.flags.resize(step.runs[0].rows.num_tokens.size());
    step.runs[0].rows.token_ids.resize(static_cast<size_t>(chunk + decodes));
    pace.sent(step, now);
  }
  TimePoint now{std::chrono::seconds(100)};
  StepPace pace{2048};
};

TEST_F(PromptPaceTest, TheFirstStepIsShortAndAFastDeviceIsNotHeldBack) {
  EXPECT_EQ(pace.prompt_tokens(), StepPace::kUnknownTokens);
  run(256, 0, 12);
  EXPECT_EQ(pace.prompt_tokens(), 2048);
  EXPECT_EQ(StepPace(64).prompt_tokens(), 64);
}

// A host device of 200 tokens a second, and one that becomes slower with the context.
TEST_F(PromptPaceTest, NoStepOfASlowDeviceTakesMuchLongerThanASecond) {
  run(256, 0, 1280);
  EXPECT_EQ(pace.prompt_tokens(), 192);
  for (int i = 0; i < 20; ++i) run(pace.prompt_tokens(), 8, pace.prompt_tokens() * 20);
  EXPECT_LE(pace.prompt_tokens(), 64);
  for (int i = 0; i < 20; ++i) run(32, 0, 60'000);
  EXPECT_EQ(pace.prompt_tokens(), StepPace::kLeastTokens) << "a prompt always gets on";
}

TEST_F(PromptPaceTest, LongPromptsHaveTwelveMillisecondsOfAStepOrAFewTokens) {
  EXPECT_EQ(pace.long_prompt_tokens(), StepPace::kUnknownTokens);
  run(1024, 0, 12);
  EXPECT_EQ(pace.long_prompt_tokens(), 1024);
  for (int i = 0; i < 40; ++i) run(512, 88, 12);
  EXPECT_EQ(pace.long_prompt_tokens(), 576) << "600 tokens, decodes among them, in whole 32s";
  for (int i = 0; i < 40; ++i) run(256, 0, 256);
  EXPECT_EQ(pace.long_prompt_tokens(), StepPace::kLeastLongChunk);
  for (int i = 0; i < 40; ++i) run(64, 0, 640);
  EXPECT_EQ(pace.long_prompt_tokens(), pace.prompt_tokens()) << "a step takes a second at most";
  for (int i = 0; i < 40; ++i) run(2048, 0, 1);
  EXPECT_EQ(pace.long_prompt_tokens(), 2048);
}

TEST_F(PromptPaceTest, AStepThatWaitedForAnotherBeginsWhenThatIsDone) {
  send(256, 0);
  send(256, 0);
  for (int i = 0; i < 2; ++i) {
    now += std::chrono::milliseconds(512);
    pace.done(now);
  }
  EXPECT_EQ(pace.prompt_tokens(), 480);
}

TEST_F(PromptPaceTest, DecodesAloneAndLostStepsSayNothing) {
  run(0, 64, 5000);
  EXPECT_EQ(pace.prompt_tokens(), StepPace::kUnknownTokens);
  send(256, 0);
  pace.clear();
  run(256, 0, 100);
  EXPECT_EQ(pace.prompt_tokens(), 2048);
}

}  // namespace
}  // namespace refrain
