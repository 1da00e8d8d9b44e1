// Prefill and decode groups behind one engine: prompts are computed in the one, answers go on in
// the other from its blocks, and whatever is lost on the way costs no request its exact answer
//

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<TokenId> prompt_of(TokenId first, size_t length = 10) {
  std::vector<TokenId> prompt = {first};
  while (prompt.size() < length) prompt.push_back(static_cast<TokenId>(prompt.size() + 1));
  return prompt;
}

class Roles : public ::testing::TestWithParam<uint64_t> {
 protected:
  explicit Roles(uint64_t seed = 0) : world_(1, seed) {
    world_.config.prefill_groups = 1;
    world_.config.decode_groups = 1;
    world_.config.worker.kv_transfer = true;
  }

  MockRank& add_worker(int32_t group, int32_t rank = 0, int32_t ranks = 1) {
    MockRankOptions options;
    options.group = group;
    options.rank = rank;
    options.pid = next_pid_++;
    options.draws = true;
    options.num_kv_blocks = blocks_;
    options.tensor_parallel_size = ranks;
    const std::string name = "group-" + std::to_string(options.pid);
    auto endpoint = world_.hub->make_client(world_.scheduler.make_executor(name), name);
    world_.ranks.push_back(std::make_unique<MockRank>(std::move(*endpoint), options));
    MockRank& added = *world_.ranks.back();
    added.find_rank = [this](int64_t pid) {
      for (const auto& each : world_.ranks)
        if (each->options.pid == pid) return each.get();
      return static_cast<MockRank*>(nullptr);
    };
    added.hello();
    return added;
  }
  void start_both() {
    world_.start();
    prefill_ = &add_worker(0);
    decode_ = &add_worker(1);
    world_.scheduler.run_until_idle();
    for (const GroupStats& group : world_.engine->stats().groups)
      ASSERT_EQ(group.state, GroupState::kReady) << group.state_detail;
  }
  GroupStats group(size_t index) { return world_.engine->stats().groups.at(index); }
  void expect_answer(RequestId id, const std::vector<TokenId>& prompt, size_t tokens) {
    const Answer& answer = world_.answers[id];
    EXPECT_EQ(answer.finishes, 1) << "request " << id;
    ipc::SlotSetup greedy;
    greedy.temperature = 0;
    EXPECT_EQ(answer.tokens, solo_run(prompt, tokens, 64, 500, 0, greedy, true))
        << "request " << id;
    EXPECT_FALSE(answer.error.has_value()) << answer.error->message;
  }
  RequestId submit(const std::vector<TokenId>& prompt, int64_t tokens) {
    SamplingParams sampling;
    sampling.max_tokens = tokens;
    sampling.temperature = 0;
    return world_.submit(prompt, sampling);
  }
  void expect_nothing_left() {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(group(i).leases, 0u);
      EXPECT_EQ(group(i).transfers.running, 0u);
      EXPECT_EQ(group(i).transfers.quarantined, 0u);
      EXPECT_EQ(group(i).blocks_free, group(i).blocks_total) << "group " << i;
    }
  }
  // The rank's process dies; a new one comes.
  void lose(MockRank*& rank) {
    const int32_t group = rank->options.group;
    world_.kill(*rank);
    world_.scheduler.advance(milliseconds(50));
    rank = &add_worker(group);
    world_.scheduler.run_until_idle();
  }

  EngineWorld world_;
  MockRank* prefill_ = nullptr;
  MockRank* decode_ = nullptr;
  int64_t next_pid_ = 500;
  int64_t blocks_ = 64;
};

bool computes_prompts(const MockRank& rank) {
  for (const ipc::Step& step : rank.steps)
    for (const int32_t tokens : step.runs.front().rows.num_tokens)
      if (tokens > 1) return true;
  return false;
}

TEST_F(Roles, AnAnswerGoesOnFromTheBlocksOfThePromptWithoutComputingIt_R28) {
  start_both();
  const auto prompt = prompt_of(10);
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
  const auto prompt = prompt_of(10, 17);
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
  const RequestId whole = world_.submit(prompt_of(10), penalised);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[whole].tokens.size(), 6u);
  EXPECT_TRUE(prefill_->steps.empty());
  const RequestId one = submit(prompt_of(20), 1);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[one].tokens.size(), 1u);
  EXPECT_TRUE(decode_->pulls.empty());
  expect_nothing_left();
}

TEST_F(Roles, APullThatFailsIsTriedAgainAndThenComputedInOneGroup) {
  start_both();
  decode_->pull_error = "the wire is cut";
  const auto prompt = prompt_of(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
  EXPECT_EQ(group(1).transfers.failed, 2u);
  EXPECT_EQ(decode_->pulls.size(), 2u);
  EXPECT_TRUE(computes_prompts(*decode_));
  expect_nothing_left();
}

// Nobody gets the blocks of a transfer that was given up before its rank has let go of them.
TEST_F(Roles, AStalledPullIsGivenUpAndItsBlocksWaitForItsEnd_R28) {
  start_both();
  decode_->hold_pulls = true;
  const auto prompt = prompt_of(10);
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
  const RequestId id = submit(prompt_of(10), 12);
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
  const auto prompt = prompt_of(10);
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
  for (TokenId first = 10; first < 13; ++first) ids.push_back(submit(prompt_of(first), 30));
  world_.scheduler.run_until_idle();
  ASSERT_TRUE(decode_->dead);
  lose(decode_);
  for (int i = 0; i < 5; ++i) world_.scheduler.advance(seconds(1));
  for (TokenId first = 10; first < 13; ++first)
    expect_answer(ids[static_cast<size_t>(first - 10)], prompt_of(first), 30);
  expect_nothing_left();
}

TEST_F(Roles, EitherGroupServesAlone_R8) {
  start_both();
  EXPECT_EQ(decode_->peers.at(0).ranks.size(), 1u);
  world_.kill(*prefill_);
  world_.scheduler.advance(milliseconds(50));
  EXPECT_TRUE(decode_->peers.at(0).ranks.empty()) << "its ranks are still asked for blocks";
  const RequestId in_decode = submit(prompt_of(10), 8);
  world_.scheduler.run_until_idle();
  expect_answer(in_decode, prompt_of(10), 8);
  prefill_ = &add_worker(0);
  world_.scheduler.run_until_idle();
  world_.kill(*decode_);
  world_.scheduler.advance(milliseconds(50));
  const RequestId in_prefill = submit(prompt_of(20), 8);
  world_.scheduler.run_until_idle();
  expect_answer(in_prefill, prompt_of(20), 8);
}

TEST_F(Roles, ADecodeGroupThatIsFullMakesPromptsWaitAndLosesNone) {
  blocks_ = 24;
  start_both();
  std::vector<RequestId> ids;
  for (TokenId first = 10; first < 30; ++first) ids.push_back(submit(prompt_of(first, 14), 30));
  world_.scheduler.run_until_idle();
  for (int i = 0; i < 60; ++i) world_.scheduler.advance(milliseconds(500));
  for (TokenId first = 10; first < 30; ++first)
    expect_answer(ids[static_cast<size_t>(first - 10)], prompt_of(first, 14), 30);
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
  const RequestId id = submit(prompt_of(10), 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt_of(10), 12);
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
  const RequestId id = submit(prompt_of(10), 12);
  world_.scheduler.run_until_idle();
  ASSERT_EQ(second.held_pulls.size(), 1u);
  EXPECT_EQ(decode_->pulls.size(), 1u);
  EXPECT_TRUE(decode_->steps.empty()) << "it ran with the blocks of one rank";
  EXPECT_EQ(group(0).leases, 1u);
  second.pull(second.held_pulls[0]);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt_of(10), 12);
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
      const auto prompt = prompt_of(static_cast<TokenId>(10 + random() % 5), 3 + random() % 20);
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

INSTANTIATE_TEST_SUITE_P(Seeds, RolesSeeds, ::testing::Range(uint64_t{1}, uint64_t{41}));

}  // namespace
}  // namespace refrain::testing
