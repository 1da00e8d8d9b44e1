// Blocks that are pulled while the step that writes the last of them runs: promised leases,
// requests that are expected, and what becomes of both.

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/sched/pair.h"
#include "tests/unit/sched/parts.h"

namespace refrain::testing {
namespace {

using std::chrono::seconds;

class EarlyTransfers : public ::testing::Test {
 protected:
  // Its prompt's step is sent and not answered, and the decode side pulls.
  void send_prompt(RequestId id = 1, size_t length = 11) {
    pair_.add(id, prompt_of(length, static_cast<TokenId>(100 * id)), 8);
    ASSERT_TRUE(pair_.turn(pair_.prefill));
    ASSERT_EQ(pair_.prefill.answers.size(), 1u);
    ASSERT_EQ(pair_.pulls.size(), 1u);
  }
  TransferCounts counts() { return pair_.decode.scheduler.stats().transfers; }
  // Its prompt has ended, its blocks are under way, and it is in neither scheduler.
  std::unique_ptr<Sequence> leave_prefill() {
    send_prompt();
    std::vector<TokenEvent> events;
    EXPECT_TRUE(pair_.prefill.scheduler.update(pair_.prefill.answers.front(), events));
    pair_.prefill.answers.clear();
    auto left = pair_.prefill.scheduler.take_handed_over();
    EXPECT_EQ(left.size(), 1u);
    return std::move(left.at(0));
  }
  // The ranks are told to stop, and nothing is left when they have.
  void expect_cancelled() {
    pair_.take_orders();
    ASSERT_EQ(pair_.cancels, std::vector<TransferId>{pair_.pulls[0].id});
    pair_.pulls.clear();
    pair_.report(pair_.cancels[0], true, "cancelled");
    pair_.expect_all_free();
  }
  void expect_end() {
    pair_.complete();
    pair_.expect_answers();
    pair_.expect_all_free();
  }

  Pair pair_{65, 65, 0, /*early=*/true};
};

TEST_F(EarlyTransfers, ThePullBeginsWithTheStepAndAddsNoTimeWhereItEndsBefore) {
  send_prompt();
  EXPECT_EQ(pair_.pulls[0].step, 1u);
  EXPECT_EQ(pair_.pulls[0].blocks[0].from.size(), 3u);
  EXPECT_EQ(counts().running, 1u);
  EXPECT_EQ(pair_.prefill.scheduler.stats().leases, 0u) << "the request has its blocks itself";
  pair_.now += seconds(1);
  const ipc::PullBlocks pull = pair_.pulls[0];
  pair_.pulls.clear();
  pair_.copy(pull);
  pair_.decode.scheduler.pulled(0, {pull.id, 1000, true, "", 900}, pair_.now);
  EXPECT_EQ(counts().running, 1u) << "it counts when its request has come";
  EXPECT_EQ(counts().early_bytes, 900u);
  EXPECT_EQ(pair_.decode.scheduler.num_unfinished(), 0u);
  pair_.now += seconds(1);
  pair_.run();
  EXPECT_TRUE(pair_.pulls.empty()) << "nothing is pulled twice";
  EXPECT_EQ(counts().done, 1u);
  const auto moved = pair_.decode.scheduler.take_moved();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].seconds, 0);
  EXPECT_EQ(moved[0].bytes, 1000);
  expect_end();
}

TEST_F(EarlyTransfers, WhatIsNotThereWhenThePromptEndsIsWaitedFor) {
  send_prompt();
  pair_.now += seconds(2);
  pair_.run();
  EXPECT_EQ(pair_.outputs[1].size(), 1u);
  EXPECT_EQ(counts().running, 1u);
  EXPECT_EQ(pair_.prefill.scheduler.stats().leases, 1u);
  pair_.now += seconds(1);
  pair_.finish_pulls();
  const auto moved = pair_.decode.scheduler.take_moved();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].seconds, 1) << "since the prompt's end";
  expect_end();
}

TEST_F(EarlyTransfers, PromptsOfEveryLengthAroundBlocksAndChunks) {
  for (size_t length = 1; length <= 40; ++length) {
    Pair pair(65, 65, 0, true);
    pair.add(1, prompt_of(length), 6);
    pair.complete();
    EXPECT_EQ(pair.promised, 1);
    pair.expect_answers();
    pair.expect_all_free();
  }
}

// A step has a deadline of its own; a transfer's begins when the prompt has ended.
TEST_F(EarlyTransfers, ALongStepIsNoLackOfProgress) {
  send_prompt();
  pair_.now += seconds(60);
  pair_.check();
  EXPECT_TRUE(pair_.cancels.empty());
  pair_.run();
  pair_.now += seconds(5);
  pair_.check();
  EXPECT_EQ(pair_.cancels.size(), 1u);
  EXPECT_EQ(counts().quarantined, 1u);
  const TransferId id = pair_.pulls[0].id;
  pair_.pulls.clear();
  pair_.report(id, true, "cancelled");
  expect_end();
}

TEST_F(EarlyTransfers, ARequestThatEndsInItsStepGivesTheRoomBack_R28) {
  send_prompt();
  pair_.prefill.scheduler.cancel(1);
  pair_.prompts.clear();
  pair_.run();
  ASSERT_EQ(pair_.cancels, std::vector<TransferId>{pair_.pulls[0].id});
  EXPECT_EQ(counts().quarantined, 1u) << "its rank may write still";
  pair_.pulls.clear();
  pair_.report(pair_.cancels[0], true, "cancelled");
  EXPECT_EQ(counts().failed, 0u);
  pair_.expect_all_free();
}

TEST_F(EarlyTransfers, AnOwnerThatIsLostIsNotWaitedFor_R28) {
  send_prompt();
  auto left = pair_.prefill.scheduler.release_all();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0]->promised, nullptr);
  left[0]->hands_over = false;
  pair_.prefill.answers.clear();
  pair_.decode.scheduler.pulled(0, {pair_.pulls[0].id, 10, true, "gone", 0}, pair_.now);
  EXPECT_EQ(counts().failed, 0u) << "no request had to go another way for it";
  EXPECT_FALSE(pair_.decode.scheduler.has_transfers());
  pair_.pulls.clear();
  pair_.to(pair_.decode, std::move(left[0]));
  expect_end();
}

// It comes with another lease, or none: what was pulled is not what it has.
TEST_F(EarlyTransfers, OnlyTheRequestThatWasPromisedTakesTheBlocks_R28) {
  send_prompt();
  const ipc::PullBlocks pull = pair_.pulls[0];
  pair_.pulls.clear();
  pair_.report(pull.id, true);
  pair_.run();  // it has come and gone on
  EXPECT_EQ(counts().done, 1u);
  send_prompt(2);
  auto left = pair_.prefill.scheduler.release_all();
  pair_.prefill.answers.clear();
  left[0]->hands_over = false;
  pair_.to(pair_.decode, std::move(left[0]));
  ASSERT_EQ(pair_.pulls.size(), 1u);
  pair_.take_orders();
  EXPECT_EQ(pair_.cancels, std::vector<TransferId>{pair_.pulls[0].id});
  pair_.pulls.clear();
  pair_.report(pair_.cancels[0], true, "cancelled");
  pair_.complete();
  EXPECT_EQ(pair_.outputs[2].size(), 8u);
  pair_.expect_all_free();
}

TEST_F(EarlyTransfers, WhoWaitsForRoomHasItFirst) {
  Pair pair(65, /*decode_blocks=*/10, 0, true);
  for (RequestId id = 1; id <= 3; ++id)
    pair.add(id, prompt_of(17, static_cast<TokenId>(100 * id)), 16);
  pair.run();
  EXPECT_EQ(pair.promised, 1) << "there is room for one";
  EXPECT_EQ(pair.pulls.size(), 1u);
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

// Whoever has its blocks already waits for nobody's: the one that runs would wait for them in turn.
TEST_F(EarlyTransfers, TheOnlyOneThatRunsLacksWhatIsKeptForOneToCome_R28) {
  Pair pair(65, /*decode_blocks=*/13, 0, true);
  pair.add(1, prompt_of(17, 100), 24);
  pair.run();
  pair.finish_pulls();
  while (pair.outputs[1].size() < 4) pair.turn(pair.decode);
  pair.add(2, prompt_of(17, 200), 4);
  while (pair.promised < 2) pair.turn(pair.prefill);
  pair.finish_pulls();
  while (pair.turn(pair.decode)) {
  }
  EXPECT_LT(pair.outputs[1].size(), 24u) << "it does not lack a block";
  pair.complete();
  pair.expect_answers();
  pair.expect_all_free();
}

// Nor is anything kept from it for one that cannot run beside it: that one's blocks come again.
void lone_one_ends(SchedulerOptions decode_options, AdapterId first, AdapterId second) {
  SchedulerOptions prefill_options = Pair::options_of(65, 0, /*early=*/true);
  prefill_options.max_loras = decode_options.max_loras;
  Pair pair(prefill_options, decode_options);
  for (Pair::Side* side : {&pair.prefill, &pair.decode})
    for (const AdapterId adapter : {first, second})
      if (adapter != 0) side->scheduler.adapter_loaded(adapter);
  pair.add(1, prompt_of(17, 100), 24, first);
  pair.run();
  pair.finish_pulls();
  while (pair.outputs[1].size() < 4) pair.turn(pair.decode);
  pair.add(2, prompt_of(17, 200), 4, second);
  while (pair.promised < 2) pair.turn(pair.prefill);
  pair.complete();
  EXPECT_EQ(pair.failed, 0);
  pair.expect_answers();
  pair.expect_all_free();
}

TEST_F(EarlyTransfers, NothingIsKeptFromTheOnlyOneThatRunsForOneThatHasNoSlot_R28) {
  SchedulerOptions options = Pair::options_of(/*blocks=*/13, 0);
  options.max_num_seqs = 1;
  lone_one_ends(options, 0, 0);
}

TEST_F(EarlyTransfers, NothingIsKeptFromTheOnlyOneThatRunsForOneWhoseAdapterHasNoPlace_R28) {
  SchedulerOptions options = Pair::options_of(/*blocks=*/13, 0);
  options.max_loras = 1;
  lone_one_ends(options, 1, 2);
}

// As one that is cancelled while the workers compile its grammar.
TEST_F(EarlyTransfers, OneThatEndsBeforeItComesGivesTheRoomBack_R28) {
  leave_prefill();
  EXPECT_FALSE(pair_.decode.scheduler.cancel(1)) << "it has not come";
  expect_cancelled();
}

TEST_F(EarlyTransfers, OneThatIsRefusedGivesTheRoomBack_R28) {
  auto comes = leave_prefill();
  EXPECT_FALSE(pair_.decode.scheduler.add(std::move(comes), digest_of(prompt_of(3))));
  expect_cancelled();
}

// Nor do they wait behind one that was put back.
TEST(EarlyTransfersSeeds, SmallPoolsUnderRandomLoadComeToAnEnd_R28) {
  int together = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t count) { return random() % count; };
    const int32_t drafts = pick(4) == 0 ? 2 : 0;
    SchedulerOptions prefill = Pair::options_of(int64_t{13} + pick(30), drafts, /*early=*/true);
    SchedulerOptions decode = Pair::options_of(int64_t{13} + pick(12), drafts);
    decode.max_num_seqs = 1 + static_cast<int32_t>(pick(4));
    prefill.max_loras = decode.max_loras = 1;
    Pair pair(prefill, decode);
    const auto adapters = static_cast<uint32_t>(pick(3));
    for (Pair::Side* side : {&pair.prefill, &pair.decode})
      for (AdapterId adapter = 1; adapter <= 2; ++adapter) side->scheduler.adapter_loaded(adapter);
    const RequestId requests = 4 + pick(8);
    for (RequestId next = 1; next <= requests;) {
      if (pick(3) == 0) {
        pair.add(next, prompt_of(1 + pick(18), static_cast<TokenId>(100 * next)), 2 + pick(16),
                 static_cast<AdapterId>(pick(adapters + 1)));
        ++next;
      } else if (pick(2) == 0) {
        pair.turn(pick(2) == 0 ? pair.prefill : pair.decode);
      } else {
        pair.finish_pulls();
      }
      together += pair.decode.scheduler.stats().transfers.running > 1;
    }
    pair.complete();
    pair.expect_answers();
    pair.expect_all_free();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(together, 0) << "no two were expected at a time";
}

TEST(PromisedLeases, CommitNothingBeforeTheyAreGrantedAndNothingThatWasGivenOutSince_R28) {
  SchedulerOptions options = small_options();
  Parts parts(options);
  BlockPools& pools = parts.resources.pools();
  BlockLeases leases(pools);
  Sequence& kept = parts.add_running(1, 8);
  const auto promised = leases.promise(kept.held, 8);
  EXPECT_TRUE(promised->held());
  EXPECT_FALSE(promised->commit()) << "the step may fail";
  EXPECT_EQ(leases.size(), 0u);
  EXPECT_EQ(leases.expire(TimePoint{} + seconds(60)), 0u);
  BlockLeases::grant(*promised, pools.detach(kept), TimePoint{} + seconds(1));
  EXPECT_TRUE(promised->commit());
  EXPECT_EQ(leases.size(), 1u);
  Sequence& other = parts.add_running(2, 8);
  const auto stays = leases.promise(other.held, 8);
  BlockLeases::withdraw(*stays);
  EXPECT_FALSE(stays->held());
  EXPECT_FALSE(stays->commit());
}

}  // namespace
}  // namespace refrain::testing
