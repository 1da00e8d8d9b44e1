// What bounds a step beside its tokens, and what requests share.
#include <gtest/gtest.h>

#include "runtime/sched/scheduler.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::small_options;
using testing::solo_run;

std::vector<TokenId> tokens_of(const std::vector<TokenId>& prompt, size_t max_tokens) {
  return solo_run(prompt, max_tokens, 64, 1000, 0);
}

SequenceParams with_setup_of(size_t bytes) {
  SequenceParams params;
  params.max_tokens = 4;
  params.setup.allowed_mask.resize(bytes / 4);
  return params;
}

// 33 requests whose setups fill half a frame each come at once, and once more after a loss.
TEST(SchedulerLimits, SetupsThatDoNotFitAStepWaitForTheNext_R23) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = options.max_num_batched_tokens = 33;
  options.groups = testing::full_attention(500);
  options.max_step_bytes = 10000;
  Harness harness(options);
  for (RequestId id = 1; id <= 33; ++id)
    ASSERT_TRUE(harness.add(id, {static_cast<TokenId>(id)}, with_setup_of(2200)));
  harness.pump();  // the harness looks at every step's bytes
  EXPECT_EQ(harness.steps[0].setups.size(), 4u);
  Harness next(options);
  for (auto& sequence : harness.scheduler.release_all()) {
    const TokenDigest given = digest_of(sequence->tokens);
    ASSERT_TRUE(next.scheduler.add(std::move(sequence), given));
  }
  ASSERT_TRUE(next.run());
  EXPECT_EQ(next.outcomes.size(), 33u);
  for (const auto& [id, outcome] : next.outcomes) EXPECT_EQ(outcome.output.size(), 4u) << id;
}

TEST(SchedulerLimits, ASetupThatNoStepHoldsIsTheRequestsError_R23) {
  SchedulerOptions options = small_options();
  options.max_step_bytes = 10000;
  Harness harness(options);
  const Status refused = harness.add(1, prompt_of(4), with_setup_of(2500));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(harness.add(2, prompt_of(4), with_setup_of(2000)));
  ASSERT_TRUE(harness.run());
}

// Who comes with the same beginning as one that runs takes its blocks when they are published, and
// does not compute them beside it.
TEST(SchedulerLimits, RequestsThatComeTogetherComputeTheirCommonBeginningOnce) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 40;
  options.max_num_batched_tokens = 80;
  options.groups = testing::full_attention(500);
  for (const int depth : {1, 2, 3}) {
    Harness harness(options, depth);
    for (RequestId id = 1; id <= 40; ++id) {
      std::vector<TokenId> prompt = prompt_of(40);
      prompt.push_back(static_cast<TokenId>(100 + id));
      ASSERT_TRUE(harness.add(id, std::move(prompt), 2));
    }
    ASSERT_TRUE(harness.run());
    int64_t computed = 0;
    for (const ipc::Step& step : harness.steps)
      computed += static_cast<int64_t>(step.runs[0].rows.token_ids.size());
    EXPECT_EQ(computed, 40 + 40 * 2) << "depth " << depth;
    EXPECT_EQ(harness.outcomes[40].cached_tokens, 40);
  }
}

// Longer than a step: the blocks of each chunk are there before the follower's turn comes.
TEST(SchedulerLimits, AFollowerWaitsForTheLastOfTheCommonBlocksOnly) {
  SchedulerOptions options = small_options();
  Harness harness(options, 2);
  std::vector<TokenId> first = prompt_of(40), second = prompt_of(40);
  second.resize(44, 7);
  ASSERT_TRUE(harness.add(1, first, 3));
  ASSERT_TRUE(harness.add(2, second, 3));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[2].cached_tokens, 40);
  EXPECT_EQ(harness.outcomes[1].output, tokens_of(first, 3));
  EXPECT_EQ(harness.outcomes[2].output, tokens_of(second, 3));
  // A leader that leaves holds nobody up.
  ASSERT_TRUE(harness.add(3, prompt_of(40, 9), 3));
  ASSERT_TRUE(harness.add(4, prompt_of(40, 9), 3));
  harness.pump();
  harness.scheduler.cancel(3);
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[4].output, tokens_of(prompt_of(40, 9), 3));
}

TEST(SchedulerLimits, ChunksKeepToTheirLimitAndDecodesDoNotCount) {
  Harness harness(small_options(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(4), 20));
  harness.send();
  harness.receive();
  harness.scheduler.limit_chunks({6});
  ASSERT_TRUE(harness.add(2, prompt_of(10, 5), 2));
  ASSERT_TRUE(harness.add(3, prompt_of(10, 9), 2));
  for (const auto& expected : {std::vector<int32_t>{1, 6}, {1, 4, 2}, {1, 1, 6}, {1, 2}}) {
    harness.send();
    EXPECT_EQ(harness.steps.back().runs[0].rows.num_tokens, expected);
    harness.receive();
  }
}

}  // namespace
}  // namespace refrain
