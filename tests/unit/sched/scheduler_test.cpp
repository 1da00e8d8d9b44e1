#include "runtime/sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::small_options;
using testing::solo_run;

std::vector<TokenId> expected(const std::vector<TokenId>& prompt, size_t max_tokens,
                              uint64_t eos_every = 0) {
  return solo_run(prompt, max_tokens, 64, 1000, eos_every);
}

ipc::StepResult answer(StepId step, std::vector<TokenId> tokens) {
  ipc::StepResult result;
  result.step = step;
  result.token_offsets = {0};
  for (size_t i = 1; i <= tokens.size(); ++i)
    result.token_offsets.push_back(static_cast<int32_t>(i));
  result.tokens = std::move(tokens);
  return result;
}

TEST(Scheduler, RunsARequestToItsEnd) {
  for (const int depth : {1, 2, 3}) {
    Harness harness(small_options(), depth);
    ASSERT_TRUE(harness.add(1, prompt_of(6), 5));
    ASSERT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[1].output, expected(prompt_of(6), 5));
    EXPECT_EQ(harness.outcomes[1].stop, StopCause::kMaxTokens);
    EXPECT_EQ(harness.steps.size(), 5u) << "no step may be wasted on an end known beforehand";
    EXPECT_TRUE(harness.all_blocks_free());
  }
}

TEST(Scheduler, SendsTheNextStepWhileOneRunsWithTheTokenOnTheDevice) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(6), 5));
  ASSERT_TRUE(harness.send());
  ASSERT_TRUE(harness.send());
  const ipc::Step& second = harness.steps[1];
  EXPECT_EQ(second.runs[0].rows.token_ids, std::vector<TokenId>{kTokenOnDevice});
  EXPECT_EQ(second.runs[0].rows.computed, std::vector<int32_t>{6});
  EXPECT_EQ(second.runs[0].mode, ipc::ForwardMode::kDecode);
  EXPECT_TRUE(second.setups.empty());
}

TEST(Scheduler, APromptLongerThanTheBudgetRunsInChunks) {
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(40), 3));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, expected(prompt_of(40), 3));
  ASSERT_EQ(harness.steps.size(), 5u);
  EXPECT_EQ(harness.steps[0].runs[0].rows.num_tokens[0], 16);
  EXPECT_EQ(harness.steps[0].runs[0].rows.flags[0], 0);
  EXPECT_EQ(harness.steps[2].runs[0].rows.num_tokens[0], 8);
  EXPECT_EQ(harness.steps[2].runs[0].rows.flags[0], ipc::kSamples);
  EXPECT_EQ(harness.steps[2].runs[0].mode, ipc::ForwardMode::kExtend);
}

std::vector<StepId> audited_steps(double rate) {
  SchedulerOptions options = small_options();
  options.audit_rate = rate;
  Harness harness(options);
  EXPECT_TRUE(harness.add(1, prompt_of(6), 20));
  EXPECT_TRUE(harness.run());
  EXPECT_EQ(harness.steps.size(), 20u);
  std::vector<StepId> audited;
  for (const ipc::Step& step : harness.steps) {
    if (step.audit) audited.push_back(step.step);
  }
  return audited;
}

TEST(Scheduler, AShareOfTheStepsIsAudited_CG41) {
  EXPECT_THAT(audited_steps(0), ::testing::IsEmpty());
  EXPECT_THAT(audited_steps(1e-300), ::testing::IsEmpty());
  EXPECT_THAT(audited_steps(0.25), ::testing::ElementsAre(4, 8, 12, 16, 20));
  EXPECT_THAT(audited_steps(0.75), ::testing::SizeIs(15));
  EXPECT_THAT(audited_steps(1), ::testing::SizeIs(20));
}

TEST(Scheduler, DecodesComeFirstAndChunksShareWhatIsLeft) {
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(4), 8));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(2, prompt_of(40, 5), 2));
  harness.send();
  const ipc::Step& step = harness.steps.back();
  EXPECT_EQ(step.runs[0].rows.num_tokens, (std::vector<int32_t>{1, 15}));
  EXPECT_EQ(step.runs[0].mode, ipc::ForwardMode::kMixed);
}

TEST(Scheduler, AFullPromptOfOneTokenIsNoDecode) {
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, {5}, 2));
  harness.send();
  EXPECT_EQ(harness.steps.back().runs[0].mode, ipc::ForwardMode::kExtend);
}

TEST(Scheduler, WithoutChunkedPrefillAPromptRunsWholeOrWaits) {
  SchedulerOptions options = small_options();
  options.enable_chunked_prefill = false;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, prompt_of(10), 2));
  ASSERT_TRUE(harness.add(2, prompt_of(10, 20), 2));
  harness.send();
  EXPECT_EQ(harness.steps.back().runs[0].rows.num_tokens, std::vector<int32_t>{10});
  const Status refused = harness.add(3, prompt_of(17), 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "prompt");
  EXPECT_TRUE(harness.run());
}

TEST(Scheduler, TheRowAfterAnEosIsComputedAndDiscarded) {
  SchedulerOptions options = small_options();
  const std::vector<TokenId> prompt = prompt_of(6);
  options.eos_token_ids = {expected(prompt, 3).back()};
  Harness harness(options);
  ASSERT_TRUE(harness.add(1, prompt, 20));
  while (harness.outcomes[1].finishes == 0) {
    harness.pump();
    harness.receive();
  }
  EXPECT_EQ(harness.outcomes[1].output, expected(prompt, 3));
  EXPECT_EQ(harness.outcomes[1].stop, StopCause::kEos);
  EXPECT_EQ(harness.scheduler.steps_in_flight(), 1u);
  EXPECT_FALSE(harness.all_blocks_free()) << "a step in flight still uses them";
  EXPECT_TRUE(harness.receive());
  EXPECT_TRUE(harness.all_blocks_free());
}

TEST(Scheduler, ASlotIsNotReusedWhileAStepInFlightUsesIt) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  Harness harness(options);
  ASSERT_TRUE(harness.add(1, prompt_of(4), 20));
  ASSERT_TRUE(harness.add(2, prompt_of(4, 9), 1));
  harness.pump();
  harness.receive();
  ASSERT_TRUE(harness.scheduler.cancel(1));
  EXPECT_FALSE(harness.send());
  harness.receive();
  EXPECT_TRUE(harness.send());
  EXPECT_EQ(harness.steps.back().setups.size(), 1u);
  EXPECT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[2].output, expected(prompt_of(4, 9), 1));
}

TEST(Scheduler, StopTokensEosAndMinTokens) {
  const std::vector<TokenId> prompt = prompt_of(6);
  const std::vector<TokenId> output = expected(prompt, 6);
  SchedulerOptions options = small_options();
  options.eos_token_ids = {output[1]};
  Harness harness(options);
  SequenceParams params;
  params.max_tokens = 6;
  params.stop_token_ids = {output[3]};
  ASSERT_TRUE(harness.add(1, prompt, params));
  params.ignore_eos = true;
  ASSERT_TRUE(harness.add(2, prompt, params));
  params.ignore_eos = false;
  params.setup.min_tokens = 5;  // the device masks what would end it before
  params.setup.end_tokens = {output[1], output[3]};
  ASSERT_TRUE(harness.add(3, prompt, params));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output.size(), 2u);
  EXPECT_EQ(harness.outcomes[1].stop, StopCause::kEos);
  EXPECT_EQ(harness.outcomes[2].output.size(), 4u);
  EXPECT_EQ(harness.outcomes[2].stop, StopCause::kStopToken);
  EXPECT_EQ(harness.outcomes[3].output.size(), 6u);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_THAT(params.setup.end_tokens,
                ::testing::Not(::testing::Contains(harness.outcomes[3].output[i])));
}

TEST(Scheduler, EndsAtTheModelsLength) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(60), 100));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output.size(), 4u);
  EXPECT_EQ(harness.outcomes[1].stop, StopCause::kMaxModelLen);
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  SchedulerOptions options = small_options();
  options.groups = testing::full_attention(6);  // 20 tokens
  Harness harness(options);
  EXPECT_FALSE(harness.add(1, {}, 1));
  EXPECT_EQ(harness.add(1, prompt_of(64), 1).error().field, "prompt");
  EXPECT_EQ(harness.add(1, prompt_of(10), 11).error().field, "max_tokens");
  ASSERT_TRUE(harness.add(1, prompt_of(10), 10));
  EXPECT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, expected(prompt_of(10), 10));
}

TEST(Scheduler, PreemptionGivesTheSameTokens) {
  for (const bool caching : {false, true}) {
    SchedulerOptions options = small_options();
    options.groups = testing::full_attention(9);  // 32 tokens for two requests of up to 28
    options.enable_prefix_caching = caching;
    Harness harness(options);
    ASSERT_TRUE(harness.add(1, prompt_of(8), 20));
    ASSERT_TRUE(harness.add(2, prompt_of(8, 30), 20));
    ASSERT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[1].output, expected(prompt_of(8), 20));
    EXPECT_EQ(harness.outcomes[2].output, expected(prompt_of(8, 30), 20));
    EXPECT_GT(harness.scheduler.stats().preemptions, 0u);
    EXPECT_TRUE(harness.all_blocks_free());
  }
}

TEST(Scheduler, ThePreemptedRequestIsTheYoungestAndSetUpAgainWithItsFirstPrompt) {
  SchedulerOptions options = small_options();
  options.groups = testing::full_attention(9);
  Harness harness(options);
  SequenceParams params;
  params.max_tokens = 20;
  params.setup.repetition_penalty = 1.3f;  // the mock then checks that the device sees every token
  params.setup.seed = 1;
  ASSERT_TRUE(harness.add(1, prompt_of(8), params));
  params.setup.seed = 2;
  ASSERT_TRUE(harness.add(2, prompt_of(8, 30), params));
  ASSERT_TRUE(harness.run());
  std::map<uint64_t, int> set_up;
  for (const ipc::Step& step : harness.steps)
    for (const ipc::SlotSetup& setup : step.setups) {
      ++set_up[setup.seed];
      EXPECT_EQ(setup.prompt_len, 8);
    }
  EXPECT_EQ(set_up[1], 1) << "the oldest lost its place";
  EXPECT_GT(set_up[2], 1);
}

TEST(Scheduler, ACommonPrefixIsTakenFromTheCache) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(12), 2));
  ASSERT_TRUE(harness.run());
  ASSERT_TRUE(harness.add(2, prompt_of(12), 2));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[2].cached_tokens, 8) << "the last prompt token is always computed";
  EXPECT_EQ(harness.outcomes[2].output, harness.outcomes[1].output);
  std::vector<TokenId> longer = prompt_of(12);
  longer.insert(longer.end(), {7, 7, 7});
  ASSERT_TRUE(harness.add(3, longer, 2));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[3].cached_tokens, 12);
  EXPECT_EQ(harness.outcomes[3].output, expected(longer, 2));
  EXPECT_EQ(harness.scheduler.stats().cached_prompt_tokens, 20u);
}

TEST(Scheduler, ARepetitionPenaltyTakesNoPrefixAndOtherPenaltiesNoOutput) {
  SequenceParams params;
  params.setup.repetition_penalty = 1.1f;
  Sequence penalised(1, prompt_of(12), params);
  EXPECT_EQ(penalised.max_prefix_tokens(), 0);
  params.setup.repetition_penalty = 1.0f;
  params.setup.presence_penalty = 0.5f;
  Sequence counted(2, prompt_of(12), params);
  counted.append(3, {}, 100);
  counted.append(4, {}, 100);
  EXPECT_EQ(counted.max_prefix_tokens(), 12);
}

TEST(Scheduler, ABadAnswerIsAnErrorAndChangesNothing_CG39) {
  Harness harness(small_options());
  ASSERT_TRUE(harness.add(1, prompt_of(4), 3));
  std::vector<TokenEvent> events;
  EXPECT_FALSE(harness.scheduler.update(answer(1, {5}), events));
  harness.send();
  EXPECT_FALSE(harness.scheduler.update(answer(2, {5}), events));
  EXPECT_FALSE(harness.scheduler.update(answer(1, {5, 6}), events));
  EXPECT_FALSE(harness.scheduler.update(answer(1, {-1}), events));
  ipc::StepResult two = answer(1, {5, 6});
  two.token_offsets = {0, 2};
  EXPECT_FALSE(harness.scheduler.update(two, events)) << "two tokens in a row of one";
  ipc::StepResult none = answer(1, {});
  none.token_offsets = {0, 0};
  EXPECT_FALSE(harness.scheduler.update(none, events)) << "no token in a row that samples";
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, expected(prompt_of(4), 3));
}

TEST(Scheduler, ReleaseAllHandsBackEveryRequestWithItsTokens) {
  Harness harness(small_options());
  for (RequestId id = 1; id <= 6; ++id)
    ASSERT_TRUE(harness.add(id, prompt_of(4, static_cast<TokenId>(id)), 9));
  for (int i = 0; i < 3; ++i) {
    harness.pump();
    harness.receive();
  }
  harness.pump();
  ASSERT_TRUE(harness.scheduler.cancel(2));
  const auto left = harness.scheduler.release_all();
  ASSERT_EQ(left.size(), 5u);
  EXPECT_EQ(left.front()->id, 1u);
  EXPECT_EQ(left.front()->output_len(), 3);
  EXPECT_EQ(left.back()->id, 6u);
  EXPECT_EQ(left.back()->state, SequenceState::kWaiting);
  EXPECT_TRUE(harness.all_blocks_free());
  EXPECT_EQ(harness.scheduler.steps_in_flight(), 0u);
}

TEST(Scheduler, ASequenceOfALostGroupGoesOnAfterItsTokens_R8) {
  Harness lost(small_options());
  ASSERT_TRUE(lost.add(1, prompt_of(6), 9));
  for (int i = 0; i < 3; ++i) {
    lost.pump();
    lost.receive();
  }
  auto sequence = std::move(lost.scheduler.release_all().front());
  EXPECT_EQ(sequence->group_losses, 1);
  TokenDigest given = digest_of(prompt_of(6));
  for (const TokenId token : lost.outcomes[1].output) given.add(token);

  Harness next(small_options());
  ASSERT_TRUE(next.scheduler.add(std::move(sequence), given));
  ASSERT_TRUE(next.run());
  EXPECT_EQ(next.steps.front().runs[0].rows.token_ids.size(), 9u) << "prompt and three tokens";
  EXPECT_EQ(next.steps.front().setups.front().prompt_len, 6);
  std::vector<TokenId> all = lost.outcomes[1].output;
  all.insert(all.end(), next.outcomes[1].output.begin(), next.outcomes[1].output.end());
  EXPECT_EQ(all, expected(prompt_of(6), 9));
}

TEST(Scheduler, ASequenceThatIsNotWhatItsClientHasIsRefused_R8) {
  const std::vector<TokenId> prompt = prompt_of(4);
  TokenDigest given = digest_of(prompt);
  for (const TokenId token : {7, 8, 9}) given.add(token);
  const auto add = [&](std::vector<TokenId> output) {
    Scheduler scheduler(small_options());
    auto sequence = std::make_unique<Sequence>(1, prompt, SequenceParams{});
    sequence->tokens.insert(sequence->tokens.end(), output.begin(), output.end());
    const Status added = scheduler.add(std::move(sequence), given);
    EXPECT_EQ(scheduler.num_unfinished(), added ? 1u : 0u);
    return added;
  };
  EXPECT_TRUE(add({7, 8, 9}));
  EXPECT_EQ(add({7, 8}).error().code, ErrorCode::kInternal) << "would repeat a token";
  EXPECT_FALSE(add({7, 8, 9, 9})) << "would leave one out";
  EXPECT_FALSE(add({7, 9, 8}));
  EXPECT_FALSE(add({7, 8, 10}));
}

TEST(Scheduler, WhatASlotSampledIsNotSentBackToIt) {  // the device would count it twice
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(6), 4));
  ASSERT_TRUE(harness.run());
  ASSERT_EQ(harness.steps.size(), 4u);
  for (size_t i = 1; i < 4; ++i)
    EXPECT_EQ(harness.steps[i].runs[0].rows.token_ids, std::vector<TokenId>{kTokenOnDevice});
}

}  // namespace
}  // namespace refrain
