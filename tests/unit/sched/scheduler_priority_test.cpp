// Requests with a lower priority number begin first, and the others make room for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;
using testing::Harness;
using testing::prompt_of;

SequenceParams with(RequestId id, int32_t priority, int64_t max_tokens) {
  SequenceParams params;
  params.priority = priority;
  params.max_tokens = max_tokens;
  params.setup.seed = id;  // tells setups apart
  return params;
}

std::vector<uint64_t> entered(const Harness& harness) {
  std::vector<uint64_t> seeds;
  for (const ipc::Step& step : harness.steps)
    for (const ipc::SlotSetup& setup : step.setups) seeds.push_back(setup.seed);
  return seeds;
}

std::vector<TokenId> own_prompt(size_t length, RequestId id) {
  std::vector<TokenId> prompt = prompt_of(length);
  prompt.front() = static_cast<TokenId>(100 + id);
  return prompt;
}

TEST(Priority, LowerNumbersBeginFirstAndEqualOnesInOrderOfArrival) {
  SchedulerOptions options = testing::small_options();
  options.max_num_seqs = 1;
  Harness harness(options, 1);
  ASSERT_TRUE(harness.add(1, own_prompt(6, 1), with(1, 0, 2)));
  harness.send();
  for (const auto& [id, priority] :
       std::vector<std::pair<RequestId, int32_t>>{{2, 7}, {3, -1}, {4, 7}, {5, 3}})
    ASSERT_TRUE(harness.add(id, own_prompt(6, id), with(id, priority, 2)));
  ASSERT_TRUE(harness.add(kCanaryRequest, {1}, with(kCanaryRequest, 9, 1)));
  ASSERT_TRUE(harness.run());
  EXPECT_THAT(entered(harness), ElementsAre(1, kCanaryRequest, 3, 5, 2, 4));
  EXPECT_TRUE(harness.all_blocks_free());
}

// Room for one of them at its full length and a bit.
TEST(Priority, TheOneThatMatteredLeastMakesRoomThoughItIsOlder) {
  SchedulerOptions options = testing::small_options();
  options.groups = testing::full_attention(1 + 12);
  options.watermark = 0;
  for (const int32_t of_the_older : {0, 5}) {
    Harness harness(options, 1);
    ASSERT_TRUE(harness.add(1, own_prompt(12, 1), with(1, of_the_older, 20)));
    harness.send();  // it runs before the other one comes
    harness.receive();
    ASSERT_TRUE(harness.add(2, own_prompt(12, 2), with(2, 1, 20)));
    ASSERT_TRUE(harness.run());
    const auto seeds = entered(harness);
    EXPECT_EQ(std::ranges::count(seeds, 1u), of_the_older == 0 ? 1 : 2);
    EXPECT_EQ(std::ranges::count(seeds, 2u), of_the_older == 0 ? 2 : 1);
    EXPECT_EQ(harness.outcomes[1].finishes + harness.outcomes[2].finishes, 2);
  }
}

}  // namespace
}  // namespace refrain
