// Short prompts beside a long one: they wait for a bounded number of steps, and it keeps its half.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using testing::Harness;
using testing::prompt_of;
using testing::solo_run;

constexpr int32_t kStep = 16;  // tokens of a step

SchedulerOptions options_of(int32_t num_blocks = 1000) {
  SchedulerOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = kStep;
  options.max_model_len = 2000;
  options.block_size = 4;
  options.groups = testing::full_attention(num_blocks);
  return options;
}

// Prompts that share no beginning.
std::vector<TokenId> own_prompt(int length, RequestId id) {
  std::vector<TokenId> prompt = prompt_of(static_cast<size_t>(length));
  prompt.front() = static_cast<TokenId>(100 + id);
  return prompt;
}

const std::vector<int32_t>& rows(const Harness& harness) {
  return harness.steps.back().runs.at(0).rows.num_tokens;
}

TEST(ShortPrompts, RunBesideALongOneWhichKeepsHalfOfTheStep) {
  Harness harness(options_of(), 1);
  ASSERT_TRUE(harness.add(1, own_prompt(200, 1), 2));
  harness.send();
  harness.receive();
  EXPECT_THAT(rows(harness), ElementsAre(kStep)) << "alone it has the whole step";
  ASSERT_TRUE(harness.add(2, own_prompt(6, 2), 1));
  ASSERT_TRUE(harness.add(3, own_prompt(5, 3), 1));
  harness.send();
  harness.receive();
  EXPECT_THAT(rows(harness), ElementsAre(6, 2, 8));
  harness.send();
  harness.receive();
  EXPECT_THAT(rows(harness), ElementsAre(3, 13)) << "what short ones leave is the long one's";
  EXPECT_EQ(harness.outcomes[2].finishes + harness.outcomes[3].finishes, 2);
  ASSERT_TRUE(harness.run());
  EXPECT_TRUE(harness.all_blocks_free());
}

// Those who decode wait for a few tokens of it in each step; short ones have the rest of the step,
// and another long one does not.
TEST(LongPrompts, HaveFewTokensOfAStepWhereOthersDecode) {
  Harness harness(options_of(), 1);
  const auto step = [&] {
    harness.send();
    harness.receive();
    return rows(harness);
  };
  ASSERT_TRUE(harness.add(1, own_prompt(4, 1), 20));
  EXPECT_THAT(step(), ElementsAre(4));
  harness.scheduler.limit_chunks({.step = 1000, .long_beside_decodes = 5});
  ASSERT_TRUE(harness.add(2, own_prompt(60, 2), 2));
  ASSERT_TRUE(harness.add(3, own_prompt(40, 3), 2));
  EXPECT_THAT(step(), ElementsAre(1, 5)) << "its first row, too";
  ASSERT_TRUE(harness.add(4, own_prompt(12, 4), 1));
  EXPECT_THAT(step(), ElementsAre(1, 10, 5));
  EXPECT_THAT(step(), ElementsAre(1, 2, 5));
  EXPECT_EQ(harness.outcomes[4].finishes, 1);
  EXPECT_TRUE(harness.scheduler.cancel(1));
  EXPECT_THAT(step(), ElementsAre(kStep)) << "nobody decodes";
  ASSERT_TRUE(harness.run());
  EXPECT_TRUE(harness.all_blocks_free());
}

// The prompt that takes the last slot while another waits ends with a tile of the step's tokens,
// and its rest comes with the next step.
TEST(WholeTiles, AreWhatAStepOfAFullDeviceEndsWith) {
  SchedulerOptions options = options_of();
  options.max_num_seqs = 3;
  options.max_num_batched_tokens = 32;
  options.row_tile = 8;
  for (const bool others_wait : {true, false}) {
    Harness harness(options, 1);
    for (const auto& [id, length] : {std::pair(1, 5), std::pair(2, 6), std::pair(3, 10)})
      ASSERT_TRUE(harness.add(id, own_prompt(length, id), 2));
    if (others_wait) {
      ASSERT_TRUE(harness.add(4, own_prompt(4, 4), 2));
    }
    harness.send();
    harness.receive();
    if (others_wait) {
      EXPECT_THAT(rows(harness), ElementsAre(5, 6, 5));
      harness.send();
      harness.receive();
      EXPECT_THAT(rows(harness), ElementsAre(1, 1, 5)) << "what was cut is not cut again";
    } else {
      EXPECT_THAT(rows(harness), ElementsAre(5, 6, 10));
    }
    ASSERT_TRUE(harness.run());
    EXPECT_TRUE(harness.all_blocks_free());
  }
}

// Its first row keeps a token at least: a prompt no longer than what goes beyond runs whole.
TEST(WholeTiles, LeaveNobodyOut) {
  SchedulerOptions options = options_of();
  options.max_num_seqs = 2;
  options.row_tile = 8;
  for (const auto& [first, second, row] :
       {std::tuple(7, 4, 1), std::tuple(6, 6, 2), std::tuple(9, 1, 1)}) {
    Harness harness(options, 1);
    for (const auto& [id, length] : {std::pair(1, first), std::pair(2, second), std::pair(3, 4)})
      ASSERT_TRUE(harness.add(id, own_prompt(length, id), 2));
    harness.send();
    harness.receive();
    EXPECT_THAT(rows(harness), ElementsAre(first, row));
    ASSERT_TRUE(harness.run());
  }
}

TEST(ShortPrompts, PassLongOnesThatWaitForTheRunningOne) {
  Harness harness(options_of(), 1);
  for (const RequestId id : {1, 2, 3}) ASSERT_TRUE(harness.add(id, own_prompt(200, id), 1));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(4, own_prompt(6, 4), 1));
  harness.send();
  harness.receive();
  EXPECT_EQ(harness.outcomes[4].finishes, 1);
  EXPECT_EQ(harness.scheduler.stats().running, 1u) << "long ones run in order of arrival";
  ASSERT_TRUE(harness.run());
}

// Two of the same beginning: the second one waits for what the first one computes.
TEST(ShortPrompts, PassALongOneThatWaitsForTheSamePrefix) {
  Harness harness(options_of(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(200), 1));
  ASSERT_TRUE(harness.add(2, prompt_of(200), 1));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(3, own_prompt(6, 3), 1));
  harness.send();
  harness.receive();
  EXPECT_EQ(harness.outcomes[3].finishes, 1);
  ASSERT_TRUE(harness.run());
  EXPECT_GT(harness.outcomes[2].cached_tokens, 0);
}

TEST(ShortPrompts, ALongPromptThatIsCachedIsAShortOne) {
  Harness harness(options_of(), 1);
  ASSERT_TRUE(harness.add(1, prompt_of(200), 1));
  ASSERT_TRUE(harness.run());
  ASSERT_TRUE(harness.add(2, own_prompt(200, 2), 1));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(3, prompt_of(204), 1));
  harness.send();
  harness.receive();
  EXPECT_EQ(harness.outcomes[3].finishes, 1);
  EXPECT_EQ(harness.outcomes[3].cached_tokens, 200);
}

// A long prompt that lacks blocks would never get them if those behind it took them first.
TEST(ShortPrompts, PassNobodyWhoWaitsForBlocks) {
  Harness harness(options_of(61), 1);
  ASSERT_TRUE(harness.add(1, own_prompt(100, 1), 20));
  for (int i = 0; i < 7; ++i) {
    harness.send();
    harness.receive();
  }
  ASSERT_EQ(harness.outcomes[1].output.size(), 1u) << "its prompt is computed";
  ASSERT_TRUE(harness.add(2, own_prompt(180, 2), 1));
  ASSERT_TRUE(harness.add(3, own_prompt(6, 3), 1));
  for (int i = 0; i < 10; ++i) {
    harness.send();
    harness.receive();
  }
  EXPECT_EQ(harness.scheduler.stats().waiting, 2u);
  ASSERT_TRUE(harness.run());
}

TEST(ShortPrompts, AreThoseUpToTheThreshold) {
  SchedulerOptions options = options_of();
  options.long_prefill_token_threshold = 4;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, own_prompt(200, 1), 1));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(2, own_prompt(5, 2), 1));
  ASSERT_TRUE(harness.add(3, own_prompt(4, 3), 1));
  harness.send();
  harness.receive();
  EXPECT_EQ(harness.outcomes[2].finishes, 0);
  EXPECT_EQ(harness.outcomes[3].finishes, 1);
  ASSERT_TRUE(harness.run());
}

// One that the step's bytes cut short does not go on in the same step.
TEST(ShortPrompts, HaveOneRowOfAStep_R23) {
  SchedulerOptions options = options_of();
  options.max_num_batched_tokens = 512;
  options.max_step_bytes = 3000;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, own_prompt(1900, 1), 1));
  harness.send();
  harness.receive();
  ASSERT_TRUE(harness.add(2, own_prompt(250, 2), 1));
  harness.send();
  harness.receive();
  ASSERT_EQ(rows(harness).size(), 2u);
  EXPECT_LT(rows(harness).front(), 250);
  ASSERT_TRUE(harness.run());
}

// Steps up to the first token of the first request in that slot.
size_t steps_to_first_token(const Harness& harness, SlotId slot) {
  for (size_t i = 0; i < harness.steps.size(); ++i) {
    const ipc::Rows& rows = harness.steps[i].runs.at(0).rows;
    for (size_t row = 0; row < rows.slot.size(); ++row) {
      if (rows.slot[row] == slot && (rows.flags[row] & ipc::kSamples) != 0) return i + 1;
    }
  }
  return 0;
}

// With L long tokens before it a short prompt of s tokens waits for no more steps than it would
// need at half of the speed, and the long one takes twice its steps at most.
RC_GTEST_PROP(ShortPrompts, WaitForTheirOwnTokensAlone, ()) {
  const int longs = *rc::gen::inRange(1, 4);
  const int length = *rc::gen::inRange(kStep + 1, 600);
  const int size = *rc::gen::inRange(1, kStep + 1);
  const int begun = *rc::gen::inRange(1, 1 + longs * length / kStep);
  Harness harness(options_of(), 1);
  for (RequestId id = 1; id <= static_cast<RequestId>(longs); ++id)
    RC_ASSERT(harness.add(id, own_prompt(length, id), 1).has_value());
  for (int i = 0; i < begun; ++i) RC_ASSERT(harness.send() && harness.receive());
  RC_ASSERT(harness.add(9, own_prompt(size, 9), 1).has_value());
  size_t steps = 0;
  while (harness.outcomes[9].finishes == 0) {
    RC_ASSERT(harness.send() && harness.receive());
    ++steps;
  }
  // One more where the next long one has not begun.
  RC_ASSERT(steps <= 1 + static_cast<size_t>((size + kStep / 2 - 1) / (kStep / 2)));
  RC_ASSERT(harness.run());
}

// However many short prompts come, each step has half of its prompt tokens for the long one.
RC_GTEST_PROP(ShortPrompts, SlowALongOneByTwoAtMost, ()) {
  const int length = *rc::gen::inRange(kStep + 1, 600);
  Harness harness(options_of(), *rc::gen::inRange(1, 3));
  RC_ASSERT(harness.add(1, own_prompt(length, 1), 1).has_value());
  RC_ASSERT(harness.send());
  const SlotId slot = harness.steps.front().runs.at(0).rows.slot.front();
  RequestId next = 2;
  while (harness.outcomes[1].finishes == 0) {
    for (int more = *rc::gen::inRange(0, 3); more > 0; --more, ++next)
      RC_ASSERT(harness.add(next, own_prompt(*rc::gen::inRange(1, kStep), next), 1).has_value());
    harness.pump();
    RC_ASSERT(harness.receive());
  }
  const auto alone = static_cast<size_t>((length + kStep - 1) / kStep);
  RC_ASSERT(steps_to_first_token(harness, slot) <= 2 * alone);
  RC_ASSERT(harness.run());
  RC_ASSERT(harness.all_blocks_free());
}

}  // namespace
}  // namespace refrain
