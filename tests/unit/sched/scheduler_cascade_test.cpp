// CG-13: blocks that all rows of a decode step begin with, found and read once. The mock reads them
// from the first row's table, so that one that is not shared changes the tokens.
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::small_options;
using testing::solo_run;

SchedulerOptions cascade_options(int64_t keys) {
  SchedulerOptions options = small_options();
  options.groups.front().cascade_keys = keys;
  return options;
}

std::vector<TokenId> behind(size_t shared, TokenId own, size_t length) {
  std::vector<TokenId> prompt = prompt_of(shared);
  for (size_t i = shared; i < length; ++i) prompt.push_back(own);
  return prompt;
}

std::vector<TokenId> alone(const std::vector<TokenId>& prompt, size_t count) {
  return solo_run(prompt, count, 64, 1000, 0);
}

void take_steps(Harness& harness) {
  for (int i = 0; i < 4; ++i) {
    harness.send();
    harness.receive();
  }
}

// The first request computes and publishes the prefix; those that come later find it.
void run_behind(Harness& harness, size_t shared, int requests) {
  ASSERT_TRUE(harness.add(1, behind(shared, 61, shared + 3), 20));
  take_steps(harness);
  for (RequestId id = 2; id <= static_cast<RequestId>(requests); ++id)
    ASSERT_TRUE(
        harness.add(id, behind(shared, static_cast<TokenId>(60 + id), shared + 2 + id), 12));
  ASSERT_TRUE(harness.run());
  for (RequestId id = 1; id <= static_cast<RequestId>(requests); ++id) {
    const size_t length = id == 1 ? shared + 3 : shared + 2 + id;
    const auto prompt = behind(shared, static_cast<TokenId>(60 + id), length);
    EXPECT_EQ(harness.outcomes[id].output, alone(prompt, id == 1 ? 20 : 12)) << id;
  }
}

TEST(SchedulerCascade, CG13StepsOfDecodesShareTheBlocksThatAllBeginWith) {
  for (const int depth : {1, 2}) {
    Harness harness(cascade_options(1), depth);
    run_behind(harness, 20, 4);
    int cascades = 0;
    for (const ipc::Step& step : harness.steps) {
      EXPECT_EQ(step.cascade, step.shared_prefix > 0);
      if (!step.cascade) continue;
      ++cascades;
      EXPECT_EQ(step.shared_prefix, 20);
      EXPECT_EQ(step.shared_rows, std::ssize(step.runs[0].rows.slot));
      EXPECT_EQ(step.runs[0].mode, ipc::ForwardMode::kDecode);
    }
    EXPECT_GT(cascades, 5);
    EXPECT_EQ(harness.scheduler.stats().cascade_steps, static_cast<uint64_t>(cascades));
  }
}

// Prompts in a step share nothing with its decodes, which read their prefix once all the same.
TEST(SchedulerCascade, CG13DecodesBesidePromptsShareTheirPrefixToo) {
  for (const int depth : {1, 2}) {
    Harness harness(cascade_options(1), depth);
    ASSERT_TRUE(harness.add(1, behind(20, 61, 23), 20));
    take_steps(harness);
    for (RequestId id = 2; id <= 3; ++id)
      ASSERT_TRUE(harness.add(id, behind(20, static_cast<TokenId>(60 + id), 24), 20));
    take_steps(harness);
    ASSERT_TRUE(harness.add(4, prompt_of(40, 99), 4));
    ASSERT_TRUE(harness.run());
    int mixed = 0;
    for (const ipc::Step& step : harness.steps) {
      if (!step.cascade || step.runs[0].mode != ipc::ForwardMode::kMixed) continue;
      ++mixed;
      EXPECT_EQ(step.shared_rows, 3);
      EXPECT_EQ(step.shared_prefix, 20);
    }
    EXPECT_GT(mixed, 0);
    for (RequestId id = 2; id <= 3; ++id)
      EXPECT_EQ(harness.outcomes[id].output,
                alone(behind(20, static_cast<TokenId>(60 + id), 24), 20));
    EXPECT_EQ(harness.outcomes[4].output, alone(prompt_of(40, 99), 4));
  }
}

TEST(SchedulerCascade, CG13PaysFromSoManySparedKeysOn) {
  // Four rows behind 20 tokens spare 60 keys.
  for (const auto& [keys, on] : {std::pair{60, true}, std::pair{61, false}, std::pair{0, false}}) {
    Harness harness(cascade_options(keys), 1);
    run_behind(harness, 20, 4);
    bool any = false;
    for (const ipc::Step& step : harness.steps) any = any || step.cascade;
    EXPECT_EQ(any, on) << keys;
  }
}

TEST(SchedulerCascade, RequestsThatShareNothingHaveNone) {
  Harness harness(cascade_options(1), 2);
  for (RequestId id = 1; id <= 4; ++id)
    ASSERT_TRUE(harness.add(id, prompt_of(13, static_cast<TokenId>(1 + 50 * id)), 8));
  ASSERT_TRUE(harness.run());
  for (const ipc::Step& step : harness.steps) EXPECT_FALSE(step.cascade);
}

TEST(SchedulerCascade, RequestsOfDifferentAdaptersShareNoBlocks) {
  SchedulerOptions options = cascade_options(1);
  options.max_loras = 2;
  Harness harness(options, 2);
  harness.scheduler.adapter_loaded(1);
  harness.scheduler.adapter_loaded(2);
  for (RequestId id = 1; id <= 2; ++id) {
    SequenceParams params;
    params.max_tokens = 8;
    params.adapter = static_cast<AdapterId>(id);
    ASSERT_TRUE(harness.add(id, prompt_of(13), params));
  }
  ASSERT_TRUE(harness.run());
  for (const ipc::Step& step : harness.steps) EXPECT_FALSE(step.cascade);
}

// What drafts leave is known to the device alone: the prefix is of tokens that are surely there.
TEST(SchedulerCascade, RowsThatVerifySharePrefixesToo) {
  SchedulerOptions options = cascade_options(1);
  options.num_drafts = 2;
  Harness harness(options, 2);
  run_behind(harness, 20, 3);
  bool any = false;
  for (const ipc::Step& step : harness.steps) {
    if (!step.cascade) continue;
    any = true;
    EXPECT_EQ(step.shared_prefix, 20);
  }
  EXPECT_TRUE(any);
}

}  // namespace
}  // namespace refrain
