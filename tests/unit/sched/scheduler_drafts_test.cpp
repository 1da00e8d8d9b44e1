// Rows with drafts: planned before it is known how many were right (CG-35, CG-39).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::small_options;
using testing::solo_run;

// The device knows how many of a row's drafts were right; the next row is planned all the same.
TEST(SchedulerDrafts, ARowWithDraftsIsPlannedByTheMostThatTheOneBeforeMayGive_CG39) {
  SchedulerOptions options = small_options();
  options.num_drafts = 3;
  Harness harness(options);
  ASSERT_TRUE(harness.add(1, prompt_of(5), 20));
  harness.send();
  EXPECT_EQ(harness.steps[0].runs[0].mode, ipc::ForwardMode::kExtend);
  harness.send();  // the first token is not known yet, its place is
  const ipc::Run& first = harness.steps[1].runs[0];
  EXPECT_EQ(first.mode, ipc::ForwardMode::kTargetVerify);
  EXPECT_EQ(first.rows.num_tokens, std::vector<int32_t>{4});
  EXPECT_EQ(first.rows.computed, std::vector<int32_t>{5});
  EXPECT_EQ(first.rows.token_ids, std::vector<TokenId>(4, kTokenOnDevice));
  EXPECT_EQ(harness.steps[1].blocks.at(0).index, std::vector<int32_t>{2}) << "9 tokens";
  harness.receive();
  harness.send();
  const ipc::Run& second = harness.steps[2].runs[0];
  EXPECT_EQ(second.rows.computed, std::vector<int32_t>{ipc::kComputedOnDevice});
  EXPECT_EQ(harness.steps[2].blocks.at(0).index, std::vector<int32_t>{3}) << "13 tokens";
  EXPECT_FALSE(harness.send()) << "a third row might reach beyond what is reserved";
  EXPECT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, solo_run(prompt_of(5), 20, 64, 1000, 0));
  EXPECT_GT(harness.scheduler.stats().drafts.accepted[0], 0u);
  EXPECT_LT(harness.steps.size(), 20u);
}

// A head keeps a token beside the state of the one before it: a chunk brings the token after it.
TEST(SchedulerDrafts, OfAHeadARowThatDoesNotSampleBringsTheTokenAfterIt_CG40) {
  SchedulerOptions options = small_options();
  options.num_drafts = 3;
  options.draft_model = options.draft_head = true;
  options.max_num_batched_tokens = 8;
  options.groups.push_back(options.groups.front());
  Harness harness(options);
  const std::vector<TokenId> prompt = prompt_of(19);
  ASSERT_TRUE(harness.add(1, prompt, 6));
  ASSERT_TRUE(harness.run());
  for (const size_t step : {0, 1}) {
    const ipc::Rows& rows = harness.steps[step].runs[0].rows;
    EXPECT_EQ(rows.flags, std::vector<uint8_t>{ipc::kContinues});
    EXPECT_EQ(rows.next_tokens, std::vector<TokenId>{prompt[8 * (step + 1)]});
    EXPECT_NE(harness.steps[step].allowed_modes, 1) << "it scores nothing";
  }
  for (size_t step = 2; step < harness.steps.size(); ++step)
    EXPECT_TRUE(harness.steps[step].runs[0].rows.next_tokens.empty()) << step;
}

TEST(SchedulerDrafts, PenaltiesAndMinTokensTakeNoDraftsAndOneLengthHoldsForAStep_CG35) {
  SchedulerOptions options = small_options();
  options.num_drafts = 3;
  Harness harness(options);
  SequenceParams penalised, least;
  penalised.max_tokens = least.max_tokens = 8;
  penalised.setup.presence_penalty = 1;
  least.setup.min_tokens = 3;
  ASSERT_TRUE(harness.add(1, prompt_of(4, 1), penalised));
  ASSERT_TRUE(harness.add(2, prompt_of(4, 9), least));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, solo_run(prompt_of(4, 1), 8, 64, 1000, 0, penalised.setup));
  EXPECT_EQ(harness.outcomes[2].output, solo_run(prompt_of(4, 9), 8, 64, 1000, 0, least.setup));
  int with_drafts = 0;
  for (size_t i = 1; i < harness.steps.size(); ++i) {
    const ipc::Rows& rows = harness.steps[i].runs[0].rows;
    for (size_t row = 0; row < rows.slot.size(); ++row) {
      EXPECT_EQ(rows.num_tokens[row], 4);
      const bool drafts = (rows.flags[row] & ipc::kNoDrafts) == 0;
      with_drafts += drafts ? 1 : 0;
      EXPECT_FALSE(drafts && (row == 0 && rows.slot.size() == 2)) << "penalties count each token";
      EXPECT_FALSE(drafts && i < 3) << "min_tokens";
    }
  }
  EXPECT_GT(with_drafts, 0);
}

TEST(SchedulerDrafts, ASlotBeginsWithTheTokensThatThePrefixCacheHolds_CG40) {
  SchedulerOptions options = small_options();
  options.num_drafts = 3;
  Harness harness(options);
  ASSERT_TRUE(harness.add(1, prompt_of(14), 2));
  ASSERT_TRUE(harness.run());
  EXPECT_THAT(harness.steps[0].setups[0].history, ::testing::IsEmpty());
  const size_t before = harness.steps.size();
  ASSERT_TRUE(harness.add(2, prompt_of(14), 2));
  ASSERT_TRUE(harness.run());
  const std::vector<TokenId> prompt = prompt_of(14);
  EXPECT_EQ(harness.steps[before].setups[0].history_begin, 0);
  EXPECT_EQ(harness.steps[before].setups[0].history,
            std::vector<TokenId>(prompt.begin(), prompt.begin() + 12));
}

}  // namespace
}  // namespace refrain
