// A request that ends its workers is found and ended, and no other.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::EngineWorld;
using testing::kPoison;
using testing::MockRank;
using testing::prompt_of;

bool has_poison(const ipc::Step& step) {
  return std::ranges::find(step.runs[0].rows.token_ids, kPoison) !=
         step.runs[0].rows.token_ids.end();
}

// Two ranks, one of which ends in such steps, and whoever starts workers again.
class IsolationTest : public ::testing::Test {
 protected:
  IsolationTest() : world_(2) {
    world_.config.worker.max_num_seqs = 16;
    world_.config.worker.max_num_batched_tokens = 32;
    world_.start();
    world_.engine->on_isolation([this](Isolation isolation) { isolations_.push_back(isolation); });
    begin_group();
  }

  // So that all that is asked meanwhile begins in one step.
  void lose_idle_group() { world_.lose(world_.newest(1)); }
  void begin_group() {
    world_.add_ranks();
    world_.newest(1).ends_with = ends_with_;
    world_.scheduler.run_until_idle();
  }
  // Until nobody ends any more; `losses` at most.
  void run(int most) {
    world_.scheduler.run_until_idle();
    for (losses_ = 0; world_.newest(1).dead && losses_ < most; ++losses_) {
      world_.lose(world_.newest(1));
      begin_group();
    }
    ASSERT_FALSE(world_.newest(1).dead) << "after " << losses_ << " losses";
  }
  void set_ends_with(std::function<bool(const ipc::Step&)> ends_with) {
    ends_with_ = std::move(ends_with);
    world_.newest(1).ends_with = ends_with_;
  }

  RequestId innocent(int number) {
    const std::vector<TokenId> prompt = prompt_of(6 + static_cast<size_t>(number), 1 + number);
    const RequestId id = world_.submit(prompt, 12);
    expected_[id] = world_.expected(prompt, 12);
    return id;
  }
  RequestId poison(int number) {
    std::vector<TokenId> prompt = prompt_of(9, 3 + number);
    prompt[4] = kPoison;
    return world_.submit(prompt, 12);
  }
  void expect_innocents_complete() {
    for (const auto& [id, tokens] : expected_) {
      EXPECT_EQ(world_.answers[id].tokens, tokens) << "request " << id;
      EXPECT_EQ(world_.answers[id].finishes, 1);
    }
    EXPECT_TRUE(world_.all_blocks_free());
    EXPECT_EQ(world_.engine->stats().requests_waiting, 0u);
  }
  // Of an isolation that is over.
  void expect_told(int explained) {
    int sum = 0;
    for (const Isolation& isolation : isolations_) sum += isolation.explained;
    EXPECT_EQ(sum, explained);
    ASSERT_FALSE(isolations_.empty());
    EXPECT_FALSE(isolations_.back().on);
  }
  void expect_ended(RequestId id) {
    EXPECT_EQ(world_.answers[id].finishes, 1);
    ASSERT_EQ(world_.answers[id].finish, FinishReason::kError);
    EXPECT_EQ(world_.answers[id].error->code, ErrorCode::kUnavailable);
    EXPECT_NE(world_.answers[id].error->message.find("it is not tried again"), std::string::npos);
  }

  EngineWorld world_;
  std::function<bool(const ipc::Step&)> ends_with_ = has_poison;
  std::map<RequestId, std::vector<TokenId>> expected_;
  std::vector<Isolation> isolations_;
  int losses_ = 0;
};

TEST_F(IsolationTest, OnlyTheRequestThatEndsItsWorkersEnds_R8) {
  for (int place = 0; place < 16; place += 5) {
    SCOPED_TRACE(place);
    RequestId ends = 0;
    isolations_.clear();
    lose_idle_group();
    for (int i = 0; i < 16; ++i) {
      if (i == place) ends = poison(i);
      if (i != place) innocent(i);
    }
    begin_group();
    run(10);
    EXPECT_EQ(losses_, 3) << "two together and one alone";
    expect_ended(ends);
    expect_innocents_complete();
    expect_told(2);
  }
}

// As when nobody else is there: a canary says that the workers are good without it, each time.
TEST_F(IsolationTest, OneThatIsAloneAtTwoLossesIsExplainedByTheNextWorkersCanary_R26) {
  for (int time = 1; time <= 3; ++time) {
    const RequestId ends = poison(1);
    run(10);
    EXPECT_EQ(losses_, 2);
    expect_ended(ends);
    ASSERT_EQ(isolations_.size(), static_cast<size_t>(time));
    expect_told(2 * time);
  }
  innocent(1);
  world_.scheduler.run_until_idle();
  expect_innocents_complete();
  EXPECT_EQ(isolations_.size(), 3u) << "what is explained is told once";
}

// Its client does not wait for a second loss, and comes again.
TEST_F(IsolationTest, OneThatIsAloneAtALossAndLeavesIsExplained_R26) {
  const RequestId leaves = poison(1);
  world_.scheduler.run_until_idle();
  ASSERT_TRUE(world_.newest(1).dead);
  lose_idle_group();
  world_.engine->cancel(leaves);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(isolations_.empty()) << "before the next workers have shown anything";
  begin_group();
  EXPECT_FALSE(world_.newest(1).dead);
  expect_told(1);
}

TEST_F(IsolationTest, OneAmongOthersThatLeavesExplainsNothing_R26) {
  innocent(1);
  const RequestId leaves = poison(1);
  world_.scheduler.run_until_idle();
  lose_idle_group();
  world_.engine->cancel(leaves);
  begin_group();
  expect_innocents_complete();
  EXPECT_TRUE(isolations_.empty());
}

// The workers themselves are at fault then, and each loss counts.
TEST_F(IsolationTest, NothingIsExplainedByWorkersThatEndWithACanary_R26) {
  innocent(0);
  innocent(1);
  set_ends_with([](const ipc::Step&) { return true; });
  world_.scheduler.run_until_idle();
  for (int loss = 0; loss < 3; ++loss) {
    lose_idle_group();
    begin_group();
  }
  ASSERT_EQ(isolations_.size(), 2u) << "the first of two suspects was ended";
  EXPECT_TRUE(isolations_[0].on);
  for (int loss = 0; loss < 3; ++loss) {
    EXPECT_EQ(world_.newest(0).steps.size(), 1u) << "a canary before all else";
    EXPECT_EQ(world_.newest(0).steps.back().runs[0].rows.token_ids, std::vector<TokenId>{0});
    lose_idle_group();
    begin_group();
  }
  for (const Isolation& isolation : isolations_) EXPECT_EQ(isolation.explained, 0);
  EXPECT_FALSE(isolations_.back().on);
}

TEST_F(IsolationTest, TwoThatEndTheirWorkersCostOneMoreLoss_R8) {
  for (int i = 0; i < 6; ++i) innocent(i);
  const RequestId one = poison(1), other = poison(2);
  for (int i = 6; i < 9; ++i) innocent(i);
  run(10);
  EXPECT_EQ(losses_, 4);
  expect_told(2);
  expect_ended(one);
  expect_ended(other);
  expect_innocents_complete();
}

// Not at once, but when it decodes its fourth token, with steps of others in the pipeline.
TEST_F(IsolationTest, OneThatEndsItsWorkersInTheMiddleIsFound_R8) {
  const std::vector<TokenId> prompt = prompt_of(9, 30);
  const std::vector<TokenId> answer = world_.expected(prompt, 12);
  SlotId slot = -1;
  set_ends_with([&](const ipc::Step& step) {
    size_t at = 0;
    const ipc::Rows& rows = step.runs[0].rows;
    for (size_t row = 0; row < rows.slot.size(); ++row) {
      if (rows.computed[row] == 0 && rows.token_ids[at] == 30) slot = rows.slot[row];
      if (rows.computed[row] == 0 && rows.token_ids[at] != 30 && rows.slot[row] == slot) slot = -1;
      at += static_cast<size_t>(rows.num_tokens[row]);
      if (rows.slot[row] == slot && rows.computed[row] + rows.num_tokens[row] >= 13) return true;
    }
    return false;
  });
  for (int i = 0; i < 5; ++i) innocent(i);
  const RequestId ends = world_.submit(prompt, 12);
  run(10);
  EXPECT_EQ(losses_, 3);
  expect_ended(ends);
  const std::vector<TokenId>& got = world_.answers[ends].tokens;
  ASSERT_EQ(got.size(), 4u);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), answer.begin()));
  expect_innocents_complete();
}

TEST_F(IsolationTest, WithWorkersThatFailInAnyStepButACanarysAllSuspectsEndAfterAFew_R8) {
  lose_idle_group();
  std::vector<RequestId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(world_.submit(prompt_of(3), 12));
  set_ends_with([](const ipc::Step& step) { return step.runs[0].rows.token_ids.size() > 1; });
  begin_group();
  run(10);
  EXPECT_EQ(losses_, 6) << "two together, four alone";
  for (const RequestId id : ids) expect_ended(id);
  expect_told(2);
}

TEST_F(IsolationTest, WhenAllSuspectsPassAllRunAgainAndNothingIsExplained_R8) {
  for (int i = 0; i < 4; ++i) innocent(i);
  int ends = 2;
  set_ends_with([&ends](const ipc::Step&) { return ends-- > 0; });
  run(10);
  EXPECT_EQ(losses_, 2);
  expect_innocents_complete();
  ASSERT_EQ(isolations_.size(), 2u);
  expect_told(0);
}

TEST_F(IsolationTest, SuspectsRunAloneOthersWaitAndCancelsAreHeard_R8) {
  lose_idle_group();
  const RequestId first = innocent(0), leaves = innocent(1), third = innocent(2);
  int ends = 2;
  set_ends_with([&ends](const ipc::Step&) { return ends-- > 0; });
  begin_group();
  world_.lose(world_.newest(1));
  begin_group();
  world_.lose(world_.newest(1));
  world_.add_ranks();
  for (const int32_t rank : {0, 1}) world_.newest(rank).hold_answers = true;
  const RequestId late = innocent(3);
  world_.scheduler.run_until_idle();
  const auto answer = [&] {
    for (const int32_t rank : {0, 1}) world_.newest(rank).answer();
    world_.scheduler.run_until_idle();
  };
  const auto& steps = world_.newest(0).steps;
  ASSERT_EQ(steps.size(), 1u) << "one step at a time";
  answer();
  answer();  // the first has two tokens more: the next one's turn
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[2].runs[0].rows.token_ids.front(), 2) << "the second's prompt";
  world_.engine->cancel(leaves);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(steps.size(), 3u) << "its step is still in flight";
  answer();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[3].runs[0].rows.token_ids.front(), 3) << "the third's prompt";
  for (const ipc::Step& step : steps) EXPECT_EQ(step.runs[0].rows.slot.size(), 1u);
  for (const int32_t rank : {0, 1}) world_.newest(rank).hold_answers = false;
  answer();
  EXPECT_EQ(world_.answers[leaves].finish, FinishReason::kAbort);
  expected_.erase(leaves);
  for (const RequestId id : {first, third, late})
    EXPECT_EQ(world_.answers[id].finish, FinishReason::kLength);
  expect_innocents_complete();
}

}  // namespace
}  // namespace refrain
