// What becomes of requests whose workers are lost: they go on with the next ones, and their
// clients see no gap, no repeat and the tokens of a run without faults (I2, I3).
#include <gtest/gtest.h>

#include "tests/unit/engine_actor/engine_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Answer;
using testing::contains;
using testing::EngineWorld;
using testing::MockRank;
using testing::MockRankOptions;
using testing::prompt_of;

MockRankOptions small_cache() {
  MockRankOptions options;
  options.num_kv_blocks = 18;  // 68 tokens: three requests that grow do not fit
  options.logprobs = true;
  options.draws = true;
  return options;
}

// Greedy, sampled with and without a seed, with penalties, log-probabilities and a stop string; one
// prompt needs three chunks.
std::map<RequestId, GenerateRequest> submit_all(EngineWorld& world, const std::string& stop) {
  std::vector<GenerateRequest> requests(5);
  for (GenerateRequest& request : requests) {
    request.sampling.max_tokens = 14;
    request.sampling.temperature = 0;
  }
  requests[0].prompt = prompt_of(6);
  requests[1].prompt = prompt_of(40, 3);
  requests[1].sampling.temperature = 0.7;
  requests[1].sampling.seed = 12345;
  requests[2].prompt = prompt_of(9, 7);
  requests[2].sampling.temperature = 0.7;
  requests[2].sampling.frequency_penalty = 0.5;
  requests[3].prompt = prompt_of(9, 7);
  requests[3].sampling.repetition_penalty = 1.2;
  requests[3].sampling.logprobs = 2;
  requests[4].prompt = prompt_of(6);
  requests[4].sampling.max_tokens = 30;
  if (!stop.empty()) requests[4].sampling.stop = {stop};
  std::map<RequestId, GenerateRequest> asked;
  for (const GenerateRequest& request : requests) asked[world.submit(request)] = request;
  return asked;
}

// Lets the ranks answer one after the other, `answers` in all, then has a rank die and others come.
// Returns whether there was still something to answer.
bool run_with_a_loss_after(EngineWorld& world, int answers, const std::string& stop) {
  world.start_ready(small_cache());
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  submit_all(world, stop);
  world.scheduler.run_until_idle();
  bool more = true;
  for (int i = 0; i < answers && more; ++i) {
    MockRank& rank = *world.ranks[static_cast<size_t>(i % 2)];
    more = !rank.held.empty();
    if (more) rank.answer();
    world.scheduler.run_until_idle();
  }
  world.lose(*world.ranks[static_cast<size_t>(answers % 2)]);
  world.add_ranks(small_cache());
  world.scheduler.run_until_idle();
  return more;
}

TEST(Resume, ALossInAnyPhaseChangesNoStream_R8) {
  for (const bool async : {true, false}) {
    // A run without faults says what must come, and a stop string that ends in its middle.
    std::string stop;
    std::map<RequestId, Answer> expected;
    for (const bool with_stop : {false, true}) {
      EngineWorld calm(2);
      calm.config.async_scheduling = async;
      calm.start_ready(small_cache());
      submit_all(calm, stop);
      calm.scheduler.run_until_idle();
      expected = calm.answers;
      if (with_stop) break;
      const std::string& text = expected.at(5).text;
      size_t from = text.size() / 2;
      while ((static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      stop = text.substr(from, 5);
    }
    ASSERT_EQ(expected.size(), 5u);
    ASSERT_EQ(expected.at(5).stop_reason, stop);
    EXPECT_EQ(expected.at(1).tokens, EngineWorld().expected(prompt_of(6), 14));
    uint64_t preempted = 0;
    int answers = 0;
    for (bool more = true; more; ++answers) {
      SCOPED_TRACE(fmt::format("async {}, after {} answers", async, answers));
      EngineWorld world(2);
      world.config.async_scheduling = async;
      more = run_with_a_loss_after(world, answers, stop);
      for (const auto& [id, answer] : expected) {
        SCOPED_TRACE(fmt::format("request {}", id));
        expect_same(world.answers[id], answer);
      }
      const EngineStats stats = world.engine->stats();
      EXPECT_EQ(stats.state, GroupState::kReady);
      EXPECT_EQ(stats.requests_failed + stats.requests_aborted, 0u);
      EXPECT_TRUE(world.all_blocks_free());
      preempted += stats.preemptions;
      if (HasFailure()) return;
    }
    EXPECT_GT(answers, 60) << "every step of the run was a place to die";
    EXPECT_GT(preempted, 0u) << "the cache was meant to be too small";
  }
}

TEST(Resume, SeededAndUnseededSamplingNeedTheirOwnSeeds) {  // the mock's tokens do depend on them
  EngineWorld world(1);
  world.start_ready(small_cache());
  SamplingParams sampling;
  sampling.temperature = 0.7;
  sampling.max_tokens = 8;
  const RequestId first = world.submit(prompt_of(6), sampling);
  const RequestId second = world.submit(prompt_of(6), sampling);
  sampling.seed = 9;
  const RequestId third = world.submit(prompt_of(6), sampling);
  const RequestId fourth = world.submit(prompt_of(6), sampling);
  world.scheduler.run_until_idle();
  EXPECT_NE(world.answers[first].tokens, world.answers[second].tokens);
  EXPECT_EQ(world.answers[third].tokens, world.answers[fourth].tokens);
}

TEST(Resume, WhatWasRunningComesBeforeWhatCameMeanwhile) {
  EngineWorld world(2);
  world.config.worker.max_num_seqs = 2;
  world.start_ready();
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  std::vector<RequestId> ids;
  ids.reserve(3);
  for (int i = 0; i < 3; ++i) ids.push_back(world.submit(prompt_of(6, 1 + 7 * i), 12));
  world.scheduler.run_until_idle();
  for (const auto& rank : world.ranks) rank->answer();
  world.scheduler.run_until_idle();
  world.lose(*world.ranks[0]);
  ids.push_back(world.submit(prompt_of(6, 40), 12));
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().requests_waiting, 4u);
  EXPECT_EQ(world.engine->stats().requests_resumed, 2u);
  world.add_ranks();
  world.scheduler.run_until_idle();
  std::vector<TokenId> first_prompt_tokens;
  for (const ipc::Step& step : world.newest(0).steps) {
    size_t at = 0;
    const ipc::Rows& rows = step.runs[0].rows;
    for (size_t row = 0; row < rows.slot.size(); ++row) {
      if (rows.computed[row] == 0) first_prompt_tokens.push_back(rows.token_ids[at]);
      at += static_cast<size_t>(rows.num_tokens[row]);
    }
  }
  EXPECT_EQ(first_prompt_tokens, (std::vector<TokenId>{1, 8, 15, 40}));
  for (const RequestId id : ids) EXPECT_EQ(world.answers[id].finish, FinishReason::kLength);
}

TEST(Resume, ThePrefixCacheOfTheLostWorkersIsForgotten) {
  EngineWorld world(1);
  world.start_ready();
  world.submit(prompt_of(20), 2);
  world.scheduler.run_until_idle();
  const RequestId warm = world.submit(prompt_of(20), 2);
  world.scheduler.run_until_idle();
  ASSERT_GT(world.answers[warm].cached_tokens, 0);
  world.lose(*world.ranks[0]);
  world.add_ranks();
  const RequestId cold = world.submit(prompt_of(20), 2);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[cold].cached_tokens, 0);
  EXPECT_EQ(world.answers[cold].tokens, world.expected(prompt_of(20), 2));
}

TEST(Resume, LateAnswersOfTheLostGroupAreDropped) {
  EngineWorld world(2);
  world.start_ready();
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  const RequestId id = world.submit(prompt_of(6), 9);
  world.scheduler.run_until_idle();
  ASSERT_EQ(world.ranks[0]->held.size(), 2u);
  world.lose(*world.ranks[1]);
  world.add_ranks();
  for (int i = 0; i < 2; ++i) {
    world.ranks[0]->answer();
    for (int turn = 0; turn < 7; ++turn) world.scheduler.run_one();
  }
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(6), 9));
  EXPECT_EQ(world.engine->stats().state, GroupState::kReady);
}

TEST(Resume, ALossDuringTheNextStartKeepsThemWaiting) {
  EngineWorld world(2);
  world.start_ready();
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  const RequestId id = world.submit(prompt_of(6), 9);
  world.scheduler.run_until_idle();
  world.lose(*world.ranks[1]);
  for (int i = 0; i < 3; ++i) {
    world.add_ranks();
    world.newest(0).hold_ready = true;
    world.scheduler.run_until_idle();
    ASSERT_EQ(world.engine->stats().state, GroupState::kStarting);
    world.lose(world.newest(1));
    EXPECT_EQ(world.answers[id].finishes, 0);
  }
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(6), 9));
}

// The group dies of a request's step again and again.
TEST(Resume, ARequestThatIsRunningAtTwoLossesInARowEndsWithAnError) {
  EngineWorld world(2);
  world.config.worker.max_num_seqs = 1;
  world.start_ready();
  for (const auto& rank : world.ranks) rank->hold_answers = true;
  const RequestId poison = world.submit(prompt_of(6), 9);
  const RequestId other = world.submit(prompt_of(7), 9);
  world.scheduler.run_until_idle();
  world.lose(*world.ranks[1]);
  EXPECT_EQ(world.answers[poison].finishes, 0);
  world.add_ranks();
  world.newest(0).hold_answers = true;
  world.scheduler.run_until_idle();
  world.lose(world.newest(1));
  EXPECT_EQ(world.answers[poison].finish, FinishReason::kError);
  EXPECT_EQ(world.answers[poison].error->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(contains(world.answers[poison].error->message, "2 times"));
  EXPECT_TRUE(contains(world.answers[poison].error->message, "rank 1 (pid 103"))
      << world.answers[poison].error->message;
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[other].tokens, world.expected(prompt_of(7), 9)) << "it only waited";
}

TEST(Resume, ARequestThatMadeProgressOutlivesManyLosses) {
  EngineWorld world(1);
  world.start_ready();
  const RequestId id = world.submit(prompt_of(2), 60);
  for (int loss = 0; loss < 3; ++loss) {
    world.newest(0).hold_answers = true;
    for (int i = 0; i < 20; ++i) {  // a few of them are chunks and give no token
      world.scheduler.run_until_idle();
      world.newest(0).answer();
    }
    world.scheduler.run_until_idle();
    world.lose(world.newest(0));
    world.add_ranks();
  }
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(2), 60));
  EXPECT_EQ(world.engine->stats().requests_resumed, 3u);
}

TEST(Resume, WithoutWorkersRequestsAreAdmittedCancelledAndTimedOut) {
  EngineWorld world(1);
  world.config.max_queue = 1;  // and four that run
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId running = world.submit(prompt_of(6), 9);
  const RequestId leaving = world.submit(prompt_of(7), 9);
  world.scheduler.run_until_idle();
  world.lose(*world.ranks[0]);
  const RequestId meanwhile = world.submit(prompt_of(8), 9);
  GenerateRequest request;
  request.prompt = prompt_of(9);
  request.timeout = std::chrono::seconds(5);
  const RequestId short_lived = world.submit(request);
  const RequestId fifth = world.submit(prompt_of(3), 9);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->submit(request, [](const RequestOutput&) {}).error().code,
            ErrorCode::kOverloaded);
  world.engine->cancel(leaving);
  world.engine->cancel(fifth);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[leaving].finish, FinishReason::kAbort);
  EXPECT_EQ(world.answers[fifth].finish, FinishReason::kAbort);
  world.scheduler.advance(std::chrono::seconds(6));
  EXPECT_EQ(world.answers[short_lived].error.value_or(Error{}).code, ErrorCode::kDeadline);
  EXPECT_EQ(world.engine->stats().requests_waiting, 2u);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[running].tokens, world.expected(prompt_of(6), 9));
  EXPECT_EQ(world.answers[meanwhile].tokens, world.expected(prompt_of(8), 9));
  EXPECT_EQ(world.answers[leaving].tokens.size(), 0u);
  EXPECT_TRUE(world.all_blocks_free());
}

TEST(Resume, WorkersThatDoNotComeBackEndAllWithAnError) {
  EngineWorld world(1);
  world.config.start_timeout = 30;
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId running = world.submit(prompt_of(6), 9);
  world.scheduler.advance(std::chrono::seconds(100));
  world.lose(*world.ranks[0]);
  const RequestId waiting = world.submit(prompt_of(8), 9);
  world.scheduler.advance(std::chrono::seconds(29));
  EXPECT_EQ(world.answers[running].finishes, 0);
  world.scheduler.advance(std::chrono::seconds(2));
  for (const RequestId id : {running, waiting}) {
    EXPECT_EQ(world.answers[id].finish, FinishReason::kError);
    EXPECT_EQ(world.answers[id].error->code, ErrorCode::kUnavailable);
  }
  EXPECT_EQ(world.engine->stats().state, GroupState::kFailed);
}

TEST(Resume, ADrainWaitsForWorkersThatComeBack_R11) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId running = world.submit(prompt_of(6), 9);
  world.scheduler.run_until_idle();
  int drained = 0;
  world.engine->drain([&] { ++drained; });
  world.lose(*world.ranks[0]);
  EXPECT_EQ(world.answers[running].finishes, 0);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[running].tokens, world.expected(prompt_of(6), 9));
  EXPECT_EQ(drained, 1);

  EngineWorld down(1);  // lost before the drain begins
  down.start_ready();
  down.lose(*down.ranks[0]);
  const RequestId waiting = down.submit(prompt_of(6), 9);
  down.engine->drain([&] { ++drained; });
  down.scheduler.advance(std::chrono::seconds(5));
  EXPECT_EQ(drained, 1);
  down.add_ranks();
  down.scheduler.run_until_idle();
  EXPECT_EQ(down.answers[waiting].tokens, down.expected(prompt_of(6), 9));
  EXPECT_EQ(drained, 2);
}

TEST(Resume, ADrainEndsAllWhenNoWorkersCome_R11) {
  EngineWorld world(1);
  world.config.start_timeout = 30;
  world.start_ready();
  world.lose(*world.ranks[0]);
  const RequestId waiting = world.submit(prompt_of(6), 9);
  int drained = 0;
  world.engine->drain([&] { ++drained; });
  world.scheduler.advance(std::chrono::seconds(31));
  EXPECT_EQ(world.answers[waiting].error.value_or(Error{}).code, ErrorCode::kUnavailable);
  EXPECT_EQ(drained, 1);
}

}  // namespace
}  // namespace refrain
