// Models with several state groups: blocks of each, a window's given back, prefixes that every
// group can resume after.
#include <gtest/gtest.h>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Harness;
using testing::prompt_of;
using testing::solo_run;

constexpr int32_t kWindow = 10;

std::vector<ipc::StateGroup> full_and_window(int64_t full, int64_t window) {
  return {{.name = "full_attention", .num_blocks = full},
          {.name = "sliding_attention", .window = kWindow, .num_blocks = window}};
}

SchedulerOptions options_of(std::vector<ipc::StateGroup> groups) {
  SchedulerOptions options = testing::small_options();  // blocks of 4, 16 tokens a step
  options.groups = std::move(groups);
  return options;
}

std::vector<TokenId> solo(const std::vector<TokenId>& prompt, size_t count) {
  return solo_run(prompt, count, 64, 1000, 0);
}

TEST(StateGroups, AStepNamesTheBlocksOfEachGroup) {
  Harness harness(options_of(full_and_window(65, 65)));
  ASSERT_TRUE(harness.add(1, prompt_of(12), 4));
  ASSERT_TRUE(harness.run());
  ASSERT_EQ(harness.steps[0].blocks.size(), 2u);
  EXPECT_EQ(harness.steps[0].blocks[0].index, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(harness.steps[0].blocks[1].index, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(harness.outcomes[1].output, solo(prompt_of(12), 4));
}

TEST(StateGroups, AWindowGivesBackTheBlocksThatItHasPassed) {
  // The most that the window's group needs: 9 tokens before a step, two steps of 16, a cut block.
  Harness harness(options_of(full_and_window(17, 13)));
  ASSERT_TRUE(harness.add(1, prompt_of(40), 24));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, solo(prompt_of(40), 24));
  EXPECT_EQ(harness.scheduler.stats().preemptions, 0u);
  EXPECT_TRUE(harness.all_blocks_free());
}

TEST(StateGroups, ARequestThatOneGroupCannotHoldIsRefused) {
  Harness harness(options_of(full_and_window(65, 11)));
  const Status status = harness.add(1, prompt_of(40), 24);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().field, "max_tokens");
}

// Of two groups the one with few blocks admits, and preempts, and nothing is left held in the
// other.
TEST(StateGroups, BlocksComeOfAllGroupsOrOfNone) {
  for (const auto& groups : {full_and_window(17, 65), full_and_window(65, 13)}) {
    for (const int depth : {1, 2}) {
      Harness harness(options_of(groups), depth);
      for (RequestId id = 1; id <= 6; ++id) {
        ASSERT_TRUE(harness.add(id, prompt_of(5 + 4 * id, static_cast<TokenId>(id)), 24));
      }
      ASSERT_TRUE(harness.run());
      for (RequestId id = 1; id <= 6; ++id) {
        EXPECT_EQ(harness.outcomes[id].output,
                  solo(prompt_of(5 + 4 * id, static_cast<TokenId>(id)), 24));
      }
      EXPECT_TRUE(harness.all_blocks_free());
    }
  }
}

TEST(StateGroups, APrefixIsAHitWhereEveryGroupCanResume) {
  Harness harness(options_of(full_and_window(65, 65)));
  const auto prompt = prompt_of(32);
  ASSERT_TRUE(harness.add(1, prompt, 4));
  ASSERT_TRUE(harness.run());
  ASSERT_TRUE(harness.add(2, prompt, 4));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[2].cached_tokens, 28);
  EXPECT_EQ(harness.outcomes[2].output, solo(prompt, 4));
  // The window's blocks of the hit alone: those that the next token sees.
  const ipc::Step& first = *std::ranges::find_if(
      harness.steps, [](const ipc::Step& step) { return step.runs[0].rows.computed[0] == 28; });
  EXPECT_EQ(first.blocks[1].index.front(), (28 - kWindow + 1) / 4);
}

// What the window has passed is used again by others: the prefix is a hit no more, though the full
// group still has it.
TEST(StateGroups, AHitEndsWhereAGroupHasLostItsBlocks) {
  Harness harness(options_of(full_and_window(300, 13)));
  const auto prompt = prompt_of(32);
  ASSERT_TRUE(harness.add(1, prompt, 4));
  ASSERT_TRUE(harness.run());
  for (RequestId id = 2; id <= 4; ++id) {
    ASSERT_TRUE(harness.add(id, prompt_of(40, static_cast<TokenId>(100 * id)), 8));
    ASSERT_TRUE(harness.run());
  }
  ASSERT_TRUE(harness.add(9, prompt, 4));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[9].cached_tokens, 0);
  EXPECT_EQ(harness.outcomes[9].output, solo(prompt, 4));
  // It filled the places that were empty, and is a hit again.
  ASSERT_TRUE(harness.add(10, prompt, 4));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[10].cached_tokens, 28);
}

TEST(StateGroups, StatesWithoutCheckpointsAreComputedFromTheBeginning) {
  auto groups = testing::full_attention(65);
  groups.push_back({.name = "recurrent", .kind = ipc::StateKind::kSlot});
  Harness harness(options_of(groups));
  for (const RequestId id : {1, 2}) {
    ASSERT_TRUE(harness.add(id, prompt_of(32), 4));
    ASSERT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[id].cached_tokens, 0);
    EXPECT_EQ(harness.outcomes[id].output, solo(prompt_of(32), 4));
  }
}

std::vector<ipc::StateGroup> with_checkpoints(int64_t checkpoints) {
  auto groups = full_and_window(65, 65);
  groups.push_back(
      {.name = "recurrent", .kind = ipc::StateKind::kSlot, .num_blocks = 1 + checkpoints});
  return groups;
}

// The prompt's last row begins at a border of blocks, where its states are kept.
TEST(StateGroups, APromptGoesOnFromTheCheckpointOfAnEqualBeginning) {
  Harness harness(options_of(with_checkpoints(4)));
  auto prompt = prompt_of(30);
  ASSERT_TRUE(harness.add(1, prompt, 4));
  ASSERT_TRUE(harness.run());
  EXPECT_EQ(harness.outcomes[1].output, solo(prompt, 4));
  prompt.insert(prompt.end(), {7, 8, 9});
  for (const RequestId id : {2, 3}) {
    ASSERT_TRUE(harness.add(id, prompt, 9));
    ASSERT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[id].cached_tokens, id == 2 ? 28 : 32);
    EXPECT_EQ(harness.outcomes[id].output, solo(prompt, 9));
  }
}

TEST(StateGroups, ACheckpointThatIsUsedAgainIsNoHit) {
  Harness harness(options_of(with_checkpoints(2)));
  for (const TokenId first : {1, 100, 200, 300, 1}) {
    const auto id = static_cast<RequestId>(harness.outcomes.size() + 1);
    ASSERT_TRUE(harness.add(id, prompt_of(30, first), 4));
    ASSERT_TRUE(harness.run());
    EXPECT_EQ(harness.outcomes[id].cached_tokens, 0);
    EXPECT_EQ(harness.outcomes[id].output, solo(prompt_of(30, first), 4));
  }
}

}  // namespace
}  // namespace refrain
