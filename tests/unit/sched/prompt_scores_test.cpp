// prompt_logprobs in the scheduler: every token of the prompt is scored once, whatever chunks,
// cached blocks, preemptions and losses come between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::MockDevice;
using testing::prompt_of;
using testing::small_options;

SequenceParams scored(int64_t max_tokens, int32_t num_top = 2) {
  SequenceParams params;
  params.max_tokens = max_tokens;
  params.setup.num_prompt_logprobs = num_top;
  return params;
}

std::vector<float> expected(const std::vector<TokenId>& prompt) {
  std::vector<float> scores;
  for (size_t i = 1; i < prompt.size(); ++i)
    scores.push_back(MockDevice::score_of(static_cast<int32_t>(i), prompt[i]));
  return scores;
}

bool scores_prompts(const ipc::Step& step) { return !step.runs[0].rows.next_tokens.empty(); }

TEST(PromptScores, ChunksAndCachedBlocksLeaveNoTokenOut) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(40), 3));
  ASSERT_TRUE(harness.run());
  ASSERT_TRUE(harness.add(2, prompt_of(40), scored(3)));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[2].output, harness.outcomes[1].output);
  EXPECT_EQ(harness.outcomes[2].cached_tokens, 0) << "a cached token's successor is not scored";
  ASSERT_NE(harness.outcomes[2].prompt, nullptr);
  EXPECT_EQ(harness.outcomes[2].prompt->logprobs, expected(prompt_of(40)));
  EXPECT_EQ(harness.outcomes[2].prompt->top_tokens.size(), 2u * 39u);
  EXPECT_EQ(harness.outcomes[1].prompt, nullptr);
}

TEST(PromptScores, CG13StepsThatScoreAllowNoGraphAndOthersAll) {
  SchedulerOptions options = small_options();
  options.audit_rate = 1;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, prompt_of(20), scored(4)));
  ASSERT_TRUE(harness.run());
  int scoring = 0;
  for (const ipc::Step& step : harness.steps) {
    EXPECT_EQ(step.allowed_modes, scores_prompts(step) ? 1 : 7);
    EXPECT_EQ(step.audit, !scores_prompts(step)) << "nothing keeps a second run's scores";
    scoring += scores_prompts(step) ? 1 : 0;
  }
  EXPECT_EQ(scoring, 2);
}

TEST(PromptScores, OneTokenOfPromptHasNothingToTell) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(1), scored(2)));
  ASSERT_TRUE(harness.run());
  ASSERT_NE(harness.outcomes[1].prompt, nullptr);
  EXPECT_TRUE(harness.outcomes[1].prompt->logprobs.empty());
}

TEST(PromptScores, PreemptedRequestsTellTheirPromptsOnce) {
  SchedulerOptions options = small_options();
  options.groups = testing::full_attention(17);
  Harness harness(options);
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(harness.add(id, prompt_of(18, static_cast<TokenId>(id)), scored(20)));
  ASSERT_TRUE(harness.run());
  EXPECT_GT(harness.scheduler.stats().preemptions, 0u);
  for (RequestId id = 1; id <= 4; ++id) {
    ASSERT_NE(harness.outcomes[id].prompt, nullptr);
    EXPECT_EQ(harness.outcomes[id].prompt->logprobs,
              expected(prompt_of(18, static_cast<TokenId>(id))));
  }
}

TEST(PromptScores, R8WhatALostGroupToldIsKeptAndTheRestComesFromTheNext) {
  Harness before(small_options(), 1), after(small_options(), 1);
  ASSERT_TRUE(before.add(1, prompt_of(40), scored(3)));
  ASSERT_TRUE(before.send());
  ASSERT_TRUE(before.receive());
  ASSERT_TRUE(before.send());  // lost
  auto left = before.scheduler.release_all();
  ASSERT_EQ(left.size(), 1u);
  const TokenDigest given = digest_of(left[0]->tokens);
  ASSERT_TRUE(after.scheduler.add(std::move(left[0]), given));
  ASSERT_TRUE(after.run());
  EXPECT_EQ(after.outcomes[1].prompt->logprobs, expected(prompt_of(40)));
}

TEST(PromptScores, AnAnswerThatScoresTooFewIsRefused) {
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(5), scored(2)));
  ASSERT_TRUE(harness.send());
  ipc::StepResult result;
  result.step = 1;
  result.token_offsets = {0, 1};
  result.tokens = {7};
  std::vector<TokenEvent> events;
  const Status refused = harness.scheduler.update(result, events);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("scores 0 prompt tokens instead of 4"));
}

}  // namespace
}  // namespace refrain
