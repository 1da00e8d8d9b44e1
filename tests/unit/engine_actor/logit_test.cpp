// A row without a finite logit ends its own request, and workers that have no others are found by a
// canary, restarted once and given up.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/engine/logit_failures.h"
#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using std::chrono::seconds;
using testing::Answer;
using testing::contains;
using testing::EngineWorld;
using testing::kPoison;
using testing::prompt_of;

// In the step of a prompt that has the token.
bool poisoned(const ipc::Step& step, size_t row) {
  size_t begin = 0;
  const ipc::Rows& rows = step.runs[0].rows;
  for (size_t i = 0; i < row; ++i) begin += static_cast<size_t>(rows.num_tokens[i]);
  const auto first = rows.token_ids.begin() + static_cast<ptrdiff_t>(begin);
  return std::find(first, first + rows.num_tokens[row], kPoison) != first + rows.num_tokens[row];
}
bool any_row(const ipc::Step&, size_t) { return true; }

struct LogitWorld : EngineWorld {
  explicit LogitWorld(std::function<bool(const ipc::Step&, size_t)> fails, int32_t drafts = 0)
      : fails(std::move(fails)) {
    config.worker.num_speculative_tokens = drafts;
    config.worker.max_num_seqs = 8;
    config.worker.max_num_batched_tokens = 64;
    start();
    begin();
  }
  void begin() {
    add_ranks();
    ranks.back()->no_logit = fails;
    scheduler.run_until_idle();
  }
  std::vector<TokenId> poison(int number) {
    std::vector<TokenId> prompt = prompt_of(9, 3 + number);
    prompt[6] = kPoison;  // in the second block
    return prompt;
  }
  void expect_failed(RequestId id) {
    EXPECT_EQ(answers[id].finishes, 1);
    ASSERT_EQ(answers[id].finish, FinishReason::kError);
    EXPECT_EQ(answers[id].error->code, ErrorCode::kInternal);
    EXPECT_TRUE(contains(answers[id].error->message, "no finite logit"));
  }
  std::function<bool(const ipc::Step&, size_t)> fails;
};

TEST(RowWithoutLogit, EndsItsOwnRequestAndNoOther_R22) {
  LogitWorld world(poisoned);
  const std::vector<TokenId> good = prompt_of(9, 3);
  const RequestId before = world.submit(good, 12), fails = world.submit(world.poison(0), 12),
                  after = world.submit(good, 12);
  world.scheduler.run_until_idle();
  world.expect_failed(fails);
  EXPECT_TRUE(world.answers[fails].tokens.empty());
  for (const RequestId id : {before, after})
    EXPECT_EQ(world.answers[id].tokens, world.expected(good, 12));
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.requests_without_logit, 1u);
  EXPECT_EQ(stats.requests_failed, 1u);
  EXPECT_EQ(stats.group_restarts, 0u);
  EXPECT_EQ(stats.generated_tokens, 24u);
  EXPECT_TRUE(world.all_blocks_free());
}

// In the middle of its answer, with the next step in flight.
TEST(RowWithoutLogit, EndsARequestThatHasTokens_R22) {
  LogitWorld world(
      [](const ipc::Step& step, size_t row) { return step.runs[0].rows.computed[row] == 14; });
  const std::vector<TokenId> prompt = prompt_of(9, 3);
  const RequestId id = world.submit(prompt, 20);
  world.scheduler.run_until_idle();
  world.expect_failed(id);
  std::vector<TokenId> expected = world.expected(prompt, 20);
  expected.resize(6);
  EXPECT_EQ(world.answers[id].tokens, expected);
  EXPECT_TRUE(contains(world.answers[id].error->message, "after 15 tokens"))
      << world.answers[id].error->message;
  EXPECT_TRUE(world.all_blocks_free());
}

// Behind drafts that were right: its tokens come first, and then its end.
TEST(RowWithoutLogit, EndsARequestBehindTheDraftsOfItsStep_R22) {
  size_t tokens = 0;
  LogitWorld world(
      [&tokens](const ipc::Step& step, size_t row) {
        const int32_t drafts = step.runs[0].rows.num_tokens[row] - 1;
        return drafts > 1 && ++tokens == 3;
      },
      /*drafts=*/3);
  const std::vector<TokenId> prompt = prompt_of(9, 3);
  const RequestId id = world.submit(prompt, 40);
  world.scheduler.run_until_idle();
  world.expect_failed(id);
  std::vector<TokenId> expected = world.expected(prompt, 40);
  ASSERT_FALSE(world.answers[id].tokens.empty());
  expected.resize(world.answers[id].tokens.size());
  EXPECT_EQ(world.answers[id].tokens, expected);
  EXPECT_EQ(world.engine->stats().group_restarts, 0u);
  EXPECT_TRUE(world.all_blocks_free());
}

// What it computed and what it read from the cache is found by nobody any more.
TEST(RowWithoutLogit, ItsBlocksLeaveThePrefixCache_R22) {
  bool fails = false;
  LogitWorld world([&fails](const ipc::Step&, size_t) { return fails; });
  const std::vector<TokenId> prompt = prompt_of(13, 3);
  const auto cached = [&] {
    const RequestId id = world.submit(prompt, 1);
    world.scheduler.run_until_idle();
    return world.answers[id].cached_tokens;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 12);
  fails = true;
  world.submit(prompt, 1);
  world.scheduler.run_until_idle();
  fails = false;
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 12);
}

TEST(RowWithoutLogit, WithAGoodCanaryEachOfManyGetsItsOwnErrorAndTheGroupStays_R22) {
  LogitWorld world(poisoned);
  const std::vector<TokenId> good = prompt_of(9, 3);
  const RequestId innocent = world.submit(good, 40);
  for (int i = 0; i < 3 * static_cast<int>(LogitFailures::kRequests); ++i) {
    const RequestId id = world.submit(world.poison(i), 12);
    world.scheduler.run_until_idle();
    world.expect_failed(id);
  }
  EXPECT_EQ(world.answers[innocent].tokens, world.expected(good, 40));
  EXPECT_EQ(world.engine->stats().group_restarts, 0u);
  const auto canaries = std::ranges::count_if(world.ranks[0]->steps, [](const ipc::Step& step) {
    return std::ranges::count(step.runs[0].rows.token_ids, 0) > 0;
  });
  EXPECT_EQ(canaries, 3) << "one for each four of them";
}

// Two at a time are not enough for a canary; and what is long past does not count.
TEST(RowWithoutLogit, AFewOfThemAskForNoCanary_R22) {
  LogitFailures failures;
  uint64_t step = 1000;
  for (size_t i = 0; i < 10 * LogitFailures::kRequests; ++i) {
    EXPECT_FALSE(failures.add(step));
    step += LogitFailures::kSteps / (LogitFailures::kRequests - 1) + 1;
  }
}

TEST(RowWithoutLogit, WithABadCanaryTheGroupRestartsOnceWithItsWeightsCheckedAndThenEnds_R22) {
  LogitWorld world(any_row);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < LogitFailures::kRequests; ++i)
    ids.push_back(world.submit(prompt_of(9, 3 + static_cast<int>(i)), 12));
  world.scheduler.run_until_idle();
  for (const RequestId id : ids) world.expect_failed(id);
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "canary");
  EXPECT_FALSE(world.losses[0].for_good);
  EXPECT_FALSE(world.ranks[0]->checks_weights);
  const RequestId waits = world.submit(prompt_of(5, 1), 12);
  world.begin();
  EXPECT_TRUE(world.newest(0).checks_weights);
  ASSERT_EQ(world.newest(0).steps.size(), 1u) << "the canary, before the request that waits";
  EXPECT_EQ(world.newest(0).steps[0].runs[0].rows.token_ids, std::vector<TokenId>{0});
  ASSERT_EQ(world.losses.size(), 2u);
  EXPECT_TRUE(world.losses[1].for_good) << "never a loop";
  EXPECT_EQ(world.engine->stats().state, GroupState::kFailed);
  EXPECT_EQ(world.answers[waits].finish, FinishReason::kError);
}

// What the others got in the canary's own step is theirs: they go on after it with the next group.
TEST(RowWithoutLogit, ABadCanaryAmongOthersTakesNoTokenFromThem_R22) {
  const auto canary_too = [](const ipc::Step& step, size_t row) {
    size_t begin = 0;
    const ipc::Rows& rows = step.runs[0].rows;
    for (size_t i = 0; i < row; ++i) begin += static_cast<size_t>(rows.num_tokens[i]);
    const bool canary =
        rows.computed[row] == 0 && rows.num_tokens[row] == 1 && rows.token_ids[begin] == 0;
    return canary || poisoned(step, row);
  };
  LogitWorld world(canary_too);
  const std::vector<TokenId> good = prompt_of(9, 3);
  const RequestId innocent = world.submit(good, 40);
  for (size_t i = 0; i < LogitFailures::kRequests; ++i)
    world.submit(world.poison(static_cast<int>(i)), 12);
  world.scheduler.run_until_idle();
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "canary");
  const auto& steps = world.ranks[0]->steps;
  EXPECT_TRUE(std::ranges::any_of(steps, [&](const ipc::Step& step) {
    return step.runs[0].rows.slot.size() > 1 &&
           std::ranges::count(step.runs[0].rows.token_ids, 0) > 0;
  })) << "the canary met no other request";
  world.fails = nullptr;
  world.begin();
  EXPECT_EQ(world.answers[innocent].tokens, world.expected(good, 40));
}

// Idle workers are found as well, before a request fails.
TEST(RowWithoutLogit, AnIdleCanaryFindsIt_R22) {
  LogitWorld world(any_row);
  world.scheduler.advance(seconds(5));
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "canary");
}

TEST(RowWithoutLogit, WorkersThatAreGoodAfterTheRestartServeAndAreTrustedAgain_R22) {
  LogitWorld world(any_row);
  world.scheduler.advance(seconds(5));
  const std::vector<TokenId> prompt = prompt_of(9, 3);
  const RequestId waits = world.submit(prompt, 12);
  world.fails = nullptr;
  world.begin();
  EXPECT_EQ(world.answers[waits].tokens, world.expected(prompt, 12));
  world.newest(0).no_logit = any_row;
  world.scheduler.advance(seconds(5));
  ASSERT_EQ(world.losses.size(), 2u);
  EXPECT_FALSE(world.losses[1].for_good) << "it had served well in between";
}

}  // namespace
}  // namespace refrain
