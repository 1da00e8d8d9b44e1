// The life of the worker group: who may join, what ends it, and that the engine serves again.
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::contains;
using testing::EngineWorld;
using testing::MockRank;
using testing::MockRankOptions;
using testing::prompt_of;

MockRankOptions rank_options(int32_t rank, int64_t pid) {
  MockRankOptions options;
  options.rank = rank;
  options.pid = pid;
  return options;
}

TEST(WorkerGroup, StartsWhenAllRanksAreThereWithTheSmallestCache) {
  EngineWorld world(2);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.num_kv_blocks = 50;
  MockRank& first = world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kStarting);
  EXPECT_EQ(first.num_blocks, 0);
  options = rank_options(1, 101);
  options.num_kv_blocks = 40;
  MockRank& second = world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_EQ(first.num_blocks, 40);
  EXPECT_EQ(second.num_blocks, 40);
  EXPECT_EQ(first.group_token, second.group_token);
  EXPECT_EQ(world.states, (std::vector<GroupState>{GroupState::kStarting, GroupState::kReady}));
  EXPECT_EQ(world.engine->stats().blocks_total, 39u);
  EXPECT_EQ(world.progress_lines.back(), "rank 0: loading weights 1/1");
}

TEST(WorkerGroup, CacheIsTheSmallestThatTheCapturesLeft_CG25) {
  EngineWorld world(2);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.num_kv_blocks = 40;
  options.blocks_lost_to_graphs = 3;
  world.add_rank(options);
  options = rank_options(1, 101);
  options.num_kv_blocks = 50;
  options.blocks_lost_to_graphs = 5;
  world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  EXPECT_EQ(world.engine->stats().blocks_total, 34u);  // 40 - 5, one of them reserved
}

TEST(WorkerGroup, ReadyWithMoreBlocksThanItWasToldOfIsRefused) {
  EngineWorld world(1);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.blocks_lost_to_graphs = -1;
  world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_NE(world.engine->stats().state, GroupState::kReady);
}

TEST(WorkerGroup, AdoptsRanksThatHoldOneGroupUnderAnEpochAboveTheirs_R10) {
  EngineWorld world(2);
  world.start();
  for (int32_t rank = 0; rank < 2; ++rank) {
    MockRankOptions options = rank_options(rank, 100 + rank);
    options.held_group = "group-7";
    options.last_epoch = 900;  // the clock has been set back since
    world.add_rank(options);
  }
  world.scheduler.run_until_idle();
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.state, GroupState::kReady);
  EXPECT_EQ(stats.epoch, 901u);
  EXPECT_TRUE(contains(stats.state_detail, "adopted")) << stats.state_detail;
  EXPECT_EQ(stats.group_restarts, 0u);
}

TEST(WorkerGroup, ARankThatBeginsAnewAndOneThatWasAdoptedBothStartAgain_R10) {
  EngineWorld world(2);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.held_group = "group-7";
  options.last_epoch = 7;
  MockRank& held = world.add_rank(options);
  world.scheduler.run_until_idle();
  MockRank& fresh = world.add_rank(rank_options(1, 101));
  world.scheduler.run_until_idle();
  for (const MockRank* rank : {&held, &fresh})
    EXPECT_TRUE(contains(rank->shut_down, "every worker has to start again")) << rank->shut_down;
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  ASSERT_EQ(world.losses.size(), 1u);
  EXPECT_EQ(world.losses[0].detector, "start");
}

TEST(WorkerGroup, RefusesAWorkerThatDoesNotFit) {
  EngineWorld world(2);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.model_digest = "another";
  MockRank& other_model = world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_TRUE(contains(other_model.refused, "another")) << other_model.refused;
  MockRank& fitting = world.add_rank(rank_options(0, 101));
  MockRank& second_claimant = world.add_rank(rank_options(0, 102));
  world.scheduler.run_until_idle();
  // Which of the two comes first is the seed's choice; exactly one is refused.
  MockRank& refused = fitting.refused.empty() ? second_claimant : fitting;
  MockRank& welcomed = fitting.refused.empty() ? fitting : second_claimant;
  EXPECT_TRUE(contains(refused.refused, "rank 0 (pid " + std::to_string(welcomed.options.pid)))
      << refused.refused;
  EXPECT_EQ(welcomed.welcomes, 1);
  world.add_rank(rank_options(1, 103));
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

TEST(WorkerGroup, RanksThatCapturedDifferentGraphsDoNotServe) {  // CG-22
  EngineWorld world(2);
  world.start();
  const RequestId waiting = world.submit(prompt_of(4), 2);
  world.add_ranks();
  world.ranks[1]->ready.manifest[1].digest = 99;
  world.scheduler.run_until_idle();
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.state, GroupState::kFailed);
  EXPECT_TRUE(contains(stats.state_detail, "rank 0 and rank 1")) << stats.state_detail;
  EXPECT_TRUE(contains(stats.state_detail, "FULL 4 tokens")) << stats.state_detail;
  EXPECT_EQ(world.answers[waiting].finish, FinishReason::kError);
  EXPECT_FALSE(world.ranks[0]->shut_down.empty());
  GenerateRequest late;
  late.prompt = {1};
  EXPECT_FALSE(world.engine->submit(late, [](const RequestOutput&) {}).has_value());
}

TEST(WorkerGroup, ACacheTooSmallForOneRequestIsAConfigurationError) {
  EngineWorld world(1);
  world.start();
  MockRankOptions options = rank_options(0, 100);
  options.num_kv_blocks = 16;  // 60 tokens, a request may have 64
  world.add_rank(options);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.states.back(), GroupState::kFailed);
  EXPECT_TRUE(contains(world.details.back(), "--max-model-len 64")) << world.details.back();
}

TEST(WorkerGroup, ADeadRankFencesTheGroupAndTheNextOneServes_R7_R8) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId running = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  const Epoch before = world.engine->stats().epoch;
  world.kill(*world.ranks[1]);
  world.scheduler.advance(std::chrono::milliseconds(50));
  EXPECT_EQ(world.answers[running].finishes, 0);
  EXPECT_TRUE(contains(world.ranks[0]->shut_down, "rank 1 (pid 101")) << world.ranks[0]->shut_down;
  EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.state, GroupState::kWaiting);
  EXPECT_EQ(stats.group_restarts, 1u);
  EXPECT_GT(stats.epoch, before);

  const RequestId waiting = world.submit(prompt_of(7), 5);
  world.kill(*world.ranks[0]);  // the fenced one ends as well: nothing of the new epoch
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[running].tokens, world.expected(prompt_of(6), 5));
  EXPECT_EQ(world.answers[waiting].tokens, world.expected(prompt_of(7), 5));
  EXPECT_EQ(world.engine->stats().group_restarts, 1u);
  EXPECT_TRUE(world.all_blocks_free());
  EXPECT_EQ(world.states.back(), GroupState::kReady);
}

TEST(WorkerGroup, AFencedRankThatStaysIsKilled_R8) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks[0]->dead = world.ranks[1]->dead = true;  // stopped: they hear no shutdown
  world.scheduler.advance(std::chrono::seconds(4));
  EXPECT_EQ(world.killed, (std::vector<int64_t>{100, 101}));
  EXPECT_EQ(world.engine->stats().group_restarts, 1u);

  EngineWorld quick(2);
  quick.start_ready();
  quick.kill(*quick.ranks[1]);
  quick.scheduler.advance(std::chrono::milliseconds(100));
  ASSERT_FALSE(quick.ranks[0]->shut_down.empty());
  quick.kill(*quick.ranks[0]);  // as told
  quick.scheduler.advance(std::chrono::seconds(2));
  EXPECT_TRUE(quick.killed.empty());
}

// A GPU's process needs more than a second to give everything back; who spawned it has a limit.
TEST(WorkerGroup, RanksThatAreToldOfAnEndTakeTheirTime) {
  EngineWorld world(2);
  world.start_ready();
  world.engine->stop();
  world.scheduler.advance(std::chrono::seconds(4));
  EXPECT_FALSE(world.ranks[0]->shut_down.empty());
  EXPECT_FALSE(world.ranks[1]->shut_down.empty());
  EXPECT_TRUE(world.killed.empty());
}

TEST(WorkerGroup, RanksThatRunDifferentKeysAreNamedAndFenced) {  // CG-31
  EngineWorld world(2);
  world.start_ready();
  world.ranks[1]->key_skew = 3;
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  EXPECT_TRUE(contains(world.details.back(), "rank 0 ran step 1")) << world.details.back();
  EXPECT_EQ(world.answers[id].tokens.size(), 0u) << "no token of a step that they do not agree on";
}

TEST(WorkerGroup, LastWordsAreShownAndAConfigurationErrorIsForGood) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->say(ipc::Failed{7, "out of device memory in op 12", false});
  world.scheduler.run_until_idle();
  EXPECT_TRUE(contains(world.details.back(), "failed at step 7: out of device memory"));
  EXPECT_EQ(world.states.back(), GroupState::kWaiting);
  world.add_ranks();
  world.scheduler.run_until_idle();
  world.ranks[1]->say(ipc::Failed{0, "model.safetensors is cut short", true});
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.states.back(), GroupState::kFailed);
}

TEST(WorkerGroup, ThreeBadFramesInTenSecondsFence) {
  EngineWorld world(1);
  world.start_ready();
  const auto send_bad = [&] {
    world.ranks[0]->corrupt_next = true;
    world.ranks[0]->say(ipc::Heartbeat{});
    world.scheduler.run_until_idle();
  };
  send_bad();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  send_bad();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  send_bad();
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  EXPECT_TRUE(contains(world.details.back(), "3 bad frames")) << world.details.back();
}

TEST(WorkerGroup, AnswersOfADeadEpochAreDropped) {
  EngineWorld world(1);
  world.start_ready();
  MockRank& old = *world.ranks[0];
  old.hold_answers = true;
  world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  world.watched.at(100)();
  world.scheduler.advance(std::chrono::milliseconds(50));
  world.add_ranks();
  world.scheduler.run_until_idle();
  old.answer();  // the dead speak
  old.answer();
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(6), 5));
}

TEST(WorkerGroup, WorkersThatNeverComeFailTheWaitingRequests) {
  EngineWorld world(2);
  world.config.start_timeout = 30;
  world.start();
  const RequestId id = world.submit(prompt_of(6), 5);
  world.add_rank(rank_options(0, 100));
  world.scheduler.run_until_idle();
  world.scheduler.advance(std::chrono::seconds(29));
  EXPECT_EQ(world.answers[id].finishes, 0);
  world.scheduler.advance(std::chrono::seconds(2));
  EXPECT_EQ(world.answers[id].finish, FinishReason::kError);
  EXPECT_TRUE(contains(world.answers[id].error->message, "rank 1 came within 30 s"))
      << world.answers[id].error->message;
  EXPECT_EQ(world.states.back(), GroupState::kFailed);
}

TEST(WorkerGroup, LastWordsThatComeAfterTheNewsOfTheEndAreHeard) {
  EngineWorld world(1);
  world.start_ready();
  world.watched.at(100)();
  world.scheduler.run_until_idle();
  world.ranks[0]->say(ipc::Failed{0, "config.json: no such field", true});
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.states.back(), GroupState::kFailed);
  EXPECT_TRUE(contains(world.details.back(), "no such field"));
}

TEST(WorkerGroup, ANewWorkerForARankWhoseProcessHasEndedIsNotRefused) {
  EngineWorld world(1);
  world.start_ready();
  world.watched.at(100)();
  world.scheduler.run_until_idle();
  MockRank& next = world.add_rank(rank_options(0, 200));
  world.scheduler.run_until_idle();
  EXPECT_EQ(next.refused, "");
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.engine->stats().group_restarts, 1u);
}

TEST(WorkerGroup, AWorkerWhosePredecessorIsGoneTakesItsRank) {
  EngineWorld world(2);
  world.start();
  MockRankOptions remote = rank_options(0, 100);
  remote.realm = "elsewhere";  // no process to watch
  world.add_rank(remote);
  world.scheduler.run_until_idle();
  world.ranks.clear();  // its connection ends while it loads
  world.add_rank(remote);
  world.add_rank(rank_options(1, 101));
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady) << world.details.back();
  EXPECT_EQ(world.ranks[0]->refused, "");
}

TEST(WorkerGroup, ARankThatStartsAndLosesItsConnectionEndsTheStart) {
  EngineWorld world(2);
  world.start();
  MockRankOptions remote = rank_options(0, 100);
  remote.realm = "elsewhere";
  world.add_rank(remote);
  world.scheduler.run_until_idle();
  world.ranks.clear();
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.states.back(), GroupState::kWaiting);
}

TEST(WorkerGroup, ARepeatedHelloBeforeTheAnswerChangesNothing) {
  EngineWorld world(1);
  world.start();
  MockRank& rank = world.add_rank(rank_options(0, 100));
  rank.hello();
  world.scheduler.run_until_idle();
  EXPECT_EQ(rank.welcomes, 1);
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

// A rank that stands still between its Hello and the Welcome says Hello again. No number of a frame
// may be used twice for that: the later one would be dropped as a repetition.
TEST(WorkerGroup, ALateAnswerToTheWelcomeCostsNoFrame) {
  EngineWorld world(1);
  world.start();
  auto endpoint = *world.hub->make_client(world.scheduler.make_executor("rank"), "rank");
  std::map<uint64_t, size_t> kinds;  // by number
  endpoint->start([&](const ipc::PeerId&, std::span<const std::byte> bytes) {
    const auto frame = ipc::decode_frame(bytes);
    ASSERT_TRUE(frame.has_value());
    const auto [known, first] = kinds.emplace(frame->info.sequence, frame->message.index());
    EXPECT_EQ(known->second, frame->message.index()) << "two frames of one number";
  });
  const auto say = [&](const ipc::Message& message, const ipc::FrameInfo& info) {
    std::vector<std::byte> frame;
    ipc::encode_frame(message, info, frame);
    ASSERT_TRUE(endpoint->send("", frame).has_value());
    world.scheduler.advance(std::chrono::milliseconds(1700));
  };
  ipc::Hello hello;
  hello.build_id = "build";
  hello.model_digest = "digest";
  say(hello, {0, 1});
  say(hello, {0, 1});
  EXPECT_EQ(kinds.size(), 1u) << "only the Welcome, whatever is repeated";
  ipc::Loaded loaded;
  loaded.groups = testing::full_attention(64);
  say(loaded, {1, 1});
  EXPECT_GT(kinds.size(), 2u) << "InitCache and heartbeats";
  EXPECT_EQ(world.engine->stats().state, GroupState::kStarting) << "nothing was lost";
}

TEST(WorkerGroup, AHelloOfAWorkerThatServedBeginsANewEpoch) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hello();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().group_restarts, 1u);
}

}  // namespace
}  // namespace refrain
