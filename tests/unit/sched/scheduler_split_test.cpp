// Prompts whose run is cut into parts beside decodes, in a cache that is too small for all (CG-39).
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;

SchedulerOptions split_options(int64_t num_blocks) {
  SchedulerOptions options = testing::small_options();
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 64;
  options.block_size = 1;
  options.groups = testing::full_attention(num_blocks);
  options.enable_prefix_caching = false;
  options.split_prefill = 5;
  options.split_prefill_tokens = 2;
  return options;
}

SequenceParams params_of(int64_t max_tokens, int32_t priority = 0) {
  SequenceParams params;
  params.max_tokens = max_tokens;
  params.priority = priority;
  return params;
}

// The prompt comes before the decode, which puts itself back in its turn: the prompt goes on.
TEST(SchedulerSplit, ADecodeThatPutsItselfBackLeavesItsTurnToThePrompt_CG39) {
  Harness harness(split_options(37), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(4), params_of(20)));
  ASSERT_TRUE(harness.send() && harness.receive());
  ASSERT_TRUE(harness.add(2, prompt_of(29, 20), params_of(2, /*priority=*/-1)));
  EXPECT_TRUE(harness.run(1000));
  EXPECT_GT(harness.scheduler.stats().preemptions, 0u);
  EXPECT_EQ(harness.outcomes[1].output.size(), 20u);
  EXPECT_EQ(harness.outcomes[2].output.size(), 2u);
}

// Of the first prompt a single token is left, which is a row among decodes: the next one waits,
// though most of it is cached.
TEST(SchedulerSplit, NoPromptBeginsBeforeTheOneThatCameFirstHasItsLastRow_CG39) {
  SchedulerOptions options = split_options(60);
  options.max_num_batched_tokens = 8;
  options.enable_prefix_caching = true;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, prompt_of(3, 40), params_of(1)));
  ASSERT_TRUE(harness.run());
  ASSERT_TRUE(harness.add(2, prompt_of(9, 20), params_of(9)));
  ASSERT_TRUE(harness.add(3, prompt_of(3, 40), params_of(9)));
  while (harness.outcomes[2].output.empty()) {
    harness.pump();
    ASSERT_TRUE(harness.receive());
    EXPECT_LE(harness.outcomes[3].output.size(), harness.outcomes[2].output.size());
  }
  EXPECT_TRUE(harness.run(1000));
}

}  // namespace
}  // namespace refrain
