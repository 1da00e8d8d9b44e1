// Prefill and decode groups behind one engine: prompts are computed in the one, answers go on in
// the other from its blocks, and whatever is lost on the way costs no request its exact answer
//

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/unit/engine_actor/two_roles.h"

namespace refrain::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(Roles, AnAnswerGoesOnFromTheBlocksOfThePromptWithoutComputingIt_R28) {
  start_both();
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
  EXPECT_FALSE(computes_prompts(*decode_)) << "the decode group computed a prompt";
  ASSERT_EQ(prefill_->steps.size(), 1u);
  ASSERT_EQ(decode_->steps.size(), 11u);
  EXPECT_EQ(decode_->steps.front().runs.front().mode, ipc::ForwardMode::kPrebuilt);
  EXPECT_EQ(decode_->steps.front().runs.front().rows.computed.front(), 10);
  EXPECT_EQ(decode_->steps.back().runs.front().mode, ipc::ForwardMode::kDecode);
  EXPECT_EQ(group(1).transfers.done, 1u);
  EXPECT_GT(group(1).transfers.bytes, 0u);
  expect_nothing_left();
}

TEST_F(Roles, DefaultModesFollowTheRole_CG2) {
  for (const Group& group : world_.config.groups()) {
    const std::string mode = world_.config.worker_of(group).cudagraph_mode;
    EXPECT_EQ(mode, group.role == ipc::GroupRole::kPrefill ? "PIECEWISE" : "FULL_DECODE_ONLY");
  }
  world_.config.cudagraph_mode_given = true;
  world_.config.worker.cudagraph_mode = "FULL";
  for (const Group& group : world_.config.groups())
    EXPECT_EQ(world_.config.worker_of(group).cudagraph_mode, "FULL");
}

TEST_F(Roles, BlocksThatTheDecodeGroupHasAreNotPulled) {
  start_both();
  const auto prompt = prompt_from(10, 17);
  submit(prompt, 4);
  world_.scheduler.run_until_idle();
  const RequestId again = submit(prompt, 4);
  world_.scheduler.run_until_idle();
  expect_answer(again, prompt, 4);
  ASSERT_EQ(decode_->pulls.size(), 2u);
  EXPECT_EQ(decode_->pulls[0].blocks.at(0).to.size(), 5u);
  EXPECT_EQ(decode_->pulls[1].blocks.at(0).to.size(), 1u);
  expect_nothing_left();
}

TEST_F(Roles, RequestsThatCannotMoveStayWhole) {
  start_both();
  SamplingParams penalised;
  penalised.max_tokens = 6;
  penalised.repetition_penalty = 1.5;
  const RequestId whole = world_.submit(prompt_from(10), penalised);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[whole].tokens.size(), 6u);
  EXPECT_TRUE(prefill_->steps.empty());
  const RequestId one = submit(prompt_from(20), 1);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[one].tokens.size(), 1u);
  EXPECT_TRUE(decode_->pulls.empty());
  expect_nothing_left();
}

TEST_F(Roles, APullThatFailsIsTriedAgainAndThenComputedInOneGroup) {
  start_both();
  decode_->pull_error = "the wire is cut";
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
  EXPECT_EQ(group(1).transfers.failed, 2u);
  EXPECT_EQ(decode_->pulls.size(), 2u);
  EXPECT_TRUE(computes_prompts(*decode_));
  expect_nothing_left();
}

TEST_F(Roles, BlocksArePulledWhileTheStepOfThePromptRuns_R28) {
  start_both();
  prefill_->hold_answers = true;
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  EXPECT_EQ(decode_->pulls[0].step, prefill_->steps.back().step);
  EXPECT_TRUE(decode_->steps.empty());
  EXPECT_EQ(group(0).steps_in_flight, 1u);
  EXPECT_EQ(group(1).transfers.running, 1u);
  EXPECT_EQ(group(1).transfers.done, 0u);
  EXPECT_EQ(group(0).leases, 0u);
  prefill_->hold_answers = false;
  prefill_->answer();
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
  EXPECT_EQ(decode_->pulls.size(), 1u);
  EXPECT_EQ(group(1).transfers.done, 1u);
  expect_nothing_left();
}

TEST_F(Roles, ARequestThatIsCancelledInTheStepOfItsPromptLeavesNothing_R28) {
  start_both();
  prefill_->hold_answers = true;
  decode_->hold_pulls = true;
  const RequestId id = submit(prompt_from(10), 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  world_.engine->cancel(id);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(decode_->cancelled, std::vector<TransferId>{decode_->pulls[0].id});
  EXPECT_EQ(group(1).transfers.quarantined, 1u);
  decode_->say(ipc::Pulled{decode_->pulls[0].id, 0, true, "cancelled"});
  prefill_->answer();
  world_.scheduler.run_until_idle();
  expect_nothing_left();
}

TEST_F(Roles, AGroupLostInTheStepOfAPromptTakesNobodysBlocksAlong_R8_R28) {
  start_both();
  prefill_->hold_answers = true;
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  lose(prefill_);
  world_.scheduler.run_until_idle();
  for (int i = 0; i < 5; ++i) world_.scheduler.advance(seconds(1));
  expect_answer(id, prompt, 12);
  expect_nothing_left();
}

// A group's own numbers of steps say when: it is not the first step that counts.
TEST_F(Roles, EachPullWaitsForTheStepOfItsOwnPrompt) {
  start_both();
  for (TokenId first = 10; first < 14; ++first) {
    const auto prompt = prompt_from(first);
    const RequestId id = submit(prompt, 6);
    world_.scheduler.run_until_idle();
    expect_answer(id, prompt, 6);
    EXPECT_EQ(decode_->pulls.back().step, prefill_->steps.back().step);
  }
  EXPECT_EQ(decode_->pulls.size(), 4u);
  expect_nothing_left();
}

// Nobody gets the blocks of a transfer that was given up before its rank has let go of them.
TEST_F(Roles, AStalledPullIsGivenUpAndItsBlocksWaitForItsEnd_R28) {
  start_both();
  decode_->hold_pulls = true;
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  for (int i = 0; i < 30; ++i) world_.scheduler.advance(seconds(1));
  expect_answer(id, prompt, 12);
  EXPECT_EQ(decode_->cancelled.size(), 2u);
  EXPECT_EQ(group(1).transfers.quarantined, 2u);
  EXPECT_EQ(group(1).blocks_free, group(1).blocks_total - 2 * 3);
  EXPECT_EQ(group(0).leases, 0u);
  for (const ipc::PullBlocks& order : decode_->pulls)
    decode_->say(ipc::Pulled{order.id, 0, true, "cancelled"});
  world_.scheduler.run_until_idle();
  expect_nothing_left();
}

TEST_F(Roles, ARequestThatEndsWhileItsBlocksComeLeavesNothing) {
  start_both();
  decode_->hold_pulls = true;
  const RequestId id = submit(prompt_from(10), 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  world_.engine->cancel(id);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].finish, FinishReason::kAbort);
  EXPECT_EQ(decode_->cancelled, std::vector<TransferId>{decode_->pulls[0].id});
  EXPECT_EQ(group(0).leases, 0u);
  decode_->say(ipc::Pulled{decode_->pulls[0].id, 0, true, "cancelled"});
  world_.scheduler.run_until_idle();
  expect_nothing_left();
}

TEST_F(Roles, APrefillGroupLostInMidTransferSendsTheRequestAnotherWay_R8_R28) {
  start_both();
  decode_->hold_pulls = true;
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(decode_->pulls.size(), 1u);
  const ipc::PullBlocks old = decode_->pulls[0];
  lose(prefill_);
  decode_->hold_pulls = false;
  decode_->say(ipc::Pulled{old.id, 1000, true, ""});  // it came after all; nobody takes it
  world_.scheduler.run_until_idle();
  for (int i = 0; i < 5; ++i) world_.scheduler.advance(seconds(1));
  expect_answer(id, prompt, 12);
  EXPECT_EQ(group(1).transfers.failed, 1u);
  expect_nothing_left();
}

TEST_F(Roles, ADecodeGroupLostSendsItsRequestsOnFromTheirTokens_R8) {
  start_both();
  decode_->ends_with = [](const ipc::Step& step) { return step.step > 5; };
  std::vector<RequestId> ids;
  for (TokenId first = 10; first < 13; ++first) ids.push_back(submit(prompt_from(first), 30));
  world_.scheduler.run_until_idle();
  ASSERT_TRUE(decode_->dead);
  lose(decode_);
  for (int i = 0; i < 5; ++i) world_.scheduler.advance(seconds(1));
  for (TokenId first = 10; first < 13; ++first)
    expect_answer(ids[static_cast<size_t>(first - 10)], prompt_from(first), 30);
  expect_nothing_left();
}

TEST_F(Roles, EitherGroupServesAlone_R8) {
  start_both();
  EXPECT_EQ(decode_->peers.at(0).ranks.size(), 1u);
  world_.kill(*prefill_);
  world_.scheduler.advance(milliseconds(50));
  EXPECT_TRUE(decode_->peers.at(0).ranks.empty()) << "its ranks are still asked for blocks";
  const RequestId in_decode = submit(prompt_from(10), 8);
  world_.scheduler.run_until_idle();
  expect_answer(in_decode, prompt_from(10), 8);
  prefill_ = &add_worker(0);
  world_.scheduler.run_until_idle();
  world_.kill(*decode_);
  world_.scheduler.advance(milliseconds(50));
  const RequestId in_prefill = submit(prompt_from(20), 8);
  world_.scheduler.run_until_idle();
  expect_answer(in_prefill, prompt_from(20), 8);
}

TEST_F(Roles, ADecodeGroupThatIsFullMakesPromptsWaitAndLosesNone) {
  blocks_ = 24;
  start_both();
  const auto ids = submit_all(20, 30);
  world_.scheduler.run_until_idle();
  for (int i = 0; i < 60; ++i) world_.scheduler.advance(milliseconds(500));
  expect_answers(ids, 30);
  expect_nothing_left();
}

// No timer runs: time stands still.
TEST_F(Roles, APromptThatWaitsForRoomGoesOnWhenAReaderLetsGo) {
  blocks_ = 24;
  start_both();
  const auto ids = submit_all(12, 4);
  world_.scheduler.run_until_idle();
  expect_answers(ids, 4);
  EXPECT_EQ(group(1).transfers.done, ids.size());
  expect_nothing_left();
}

TEST_F(Roles, AWorkerOfAnotherRoleIsRefused_R4) {
  world_.start();
  MockRankOptions options;
  options.pid = next_pid_++;
  auto endpoint = world_.hub->make_client(world_.scheduler.make_executor("odd"), "odd");
  world_.ranks.push_back(std::make_unique<MockRank>(std::move(*endpoint), options));
  ipc::Hello hello;
  hello.build_id = options.build_id;
  hello.model_digest = options.model_digest;
  hello.pid = options.pid;
  hello.role = "decode";
  world_.ranks.back()->say(hello);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(contains(world_.ranks.back()->refused, "--role decode"))
      << world_.ranks.back()->refused;
}

class UnequalRoles : public Roles {
 protected:
  UnequalRoles() {
    world_.config.prefill_tensor_parallel_size = 2;
    world_.config.decode_tensor_parallel_size = 1;
  }
};

TEST_F(UnequalRoles, EachGroupHasRanksOfItsOwn) {
  world_.start();
  add_worker(0, 0, 2);
  add_worker(0, 1, 2);
  add_worker(1, 0, 1);
  world_.scheduler.run_until_idle();
  const RequestId id = submit(prompt_from(10), 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt_from(10), 12);
  EXPECT_EQ(group(1).transfers.done, 1u);
  EXPECT_EQ(world_.engine->config().num_workers(), 3);
  expect_nothing_left();
}

TEST_F(UnequalRoles, ARequestWaitsForTheBlocksOfEveryRank_R28) {
  world_.config.prefill_tensor_parallel_size = 1;
  world_.config.decode_tensor_parallel_size = 2;
  world_.start();
  add_worker(0, 0, 1);
  decode_ = &add_worker(1, 0, 2);
  MockRank& second = add_worker(1, 1, 2);
  second.hold_pulls = true;
  world_.scheduler.run_until_idle();
  const RequestId id = submit(prompt_from(10), 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(second.held_pulls.size(), 1u);
  EXPECT_EQ(decode_->pulls.size(), 1u);
  EXPECT_TRUE(decode_->steps.empty()) << "it ran with the blocks of one rank";
  EXPECT_EQ(group(0).leases, 1u);
  second.pull(second.held_pulls[0]);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt_from(10), 12);
  expect_nothing_left();
}

// Whatever comes in whatever order: pulls are held, fail, end late; ranks die. Every request ends
// once with its own tokens, and nothing is left.
class RolesSeeds : public Roles {
 protected:
  RolesSeeds() : Roles(GetParam()) {}
};

TEST_P(RolesSeeds, EveryRequestEndsOnceWithItsOwnTokens_R28) {
  blocks_ = 24;
  start_both();
  std::mt19937_64 random(GetParam());
  std::map<RequestId, std::pair<std::vector<TokenId>, int64_t>> asked;
  std::set<RequestId> cancelled;
  for (int i = 0; i < 120; ++i) {
    const auto what = random() % 16;
    if (what < 7) {
      const auto prompt = prompt_from(static_cast<TokenId>(10 + random() % 5), 3 + random() % 20);
      const auto tokens = static_cast<int64_t>(1 + random() % 20);
      asked[submit(prompt, tokens)] = {prompt, tokens};
    } else if (what < 9) {
      decode_->hold_pulls = !decode_->hold_pulls;
      if (!decode_->hold_pulls)
        for (const auto& order : std::exchange(decode_->held_pulls, {})) decode_->pull(order);
    } else if (what == 9) {
      decode_->pull_error = decode_->pull_error.empty() ? "lost" : "";
    } else if (what == 10 && !asked.empty()) {
      const RequestId id =
          std::next(asked.begin(), static_cast<int64_t>(random() % asked.size()))->first;
      world_.engine->cancel(id);
      cancelled.insert(id);
    } else if (what == 11 && random() % 2 == 0) {
      lose(random() % 2 == 0 ? prefill_ : decode_);
    } else {
      world_.scheduler.advance(milliseconds(random() % 4000));
    }
    if (random() % 3 == 0) world_.scheduler.run_until_idle();
  }
  decode_->pull_error.clear();
  decode_->hold_pulls = false;
  for (int i = 0; i < 40; ++i) {
    for (const auto& order : std::exchange(decode_->held_pulls, {})) decode_->pull(order);
    world_.scheduler.advance(seconds(1));
  }
  for (const auto& [id, request] : asked)
    if (!cancelled.contains(id))
      expect_answer(id, request.first, static_cast<size_t>(request.second));
  expect_nothing_left();
}

// Nothing but the last answers comes after the clients have gone, and no time goes by.
TEST_P(RolesSeeds, WhatIsFreeWhenAllClientsLeftIsShownAtOnce_R28) {
  start_both();
  std::mt19937_64 random(GetParam());
  std::set<RequestId> running;
  for (int wave = 0; wave < 8; ++wave) {
    prefill_->hold_answers = random() % 2 == 0;
    decode_->hold_answers = random() % 4 == 0;
    decode_->hold_pulls = random() % 4 == 0;
    for (auto i = random() % 8; i > 0; --i)
      running.insert(
          submit(prompt_from(static_cast<TokenId>(10 + random() % 5), 3 + random() % 40), 20));
    for (auto i = random() % 60; i > 0 && world_.scheduler.run_one();) --i;
    for (const RequestId id : std::exchange(running, {})) world_.engine->cancel(id);
    if (random() % 2 == 0) world_.scheduler.run_until_idle();
    for (MockRank* rank : {prefill_, decode_}) {
      rank->hold_answers = false;
      while (!rank->held.empty()) rank->answer();
    }
    decode_->hold_pulls = false;
    for (const auto& order : std::exchange(decode_->held_pulls, {})) decode_->pull(order);
    world_.scheduler.run_until_idle();
    expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RolesSeeds, ::testing::Range(uint64_t{1}, uint64_t{41}));

}  // namespace
}  // namespace refrain::testing
