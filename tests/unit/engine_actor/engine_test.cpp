// Requests through the whole engine: tokens, text, ends, queueing, draining.
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

TEST(Engine, AnswersARequestWithTokensTextAndOneFinish) {
  EngineWorld world(2);
  world.start_ready();
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  const Answer& answer = world.answers[id];
  EXPECT_EQ(answer.tokens, world.expected(prompt_of(6), 5));
  EXPECT_EQ(answer.text, world.tokenizer->decode(answer.tokens, true));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.finishes, 1);
  EXPECT_EQ(answer.prompt_tokens, 6);
  EXPECT_EQ(answer.output_tokens, 5);
  EXPECT_TRUE(world.all_blocks_free());
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.requests_total, 1u);
  EXPECT_EQ(stats.requests_at_length, 1u);
  EXPECT_EQ(stats.generated_tokens, 5u);
  EXPECT_EQ(stats.prompt_tokens, 6u);
  EXPECT_EQ(stats.steps, 5u);
}

TEST(Engine, KeepsTwoStepsInFlightAndOneWithoutAsyncScheduling) {
  for (const bool async : {true, false}) {
    EngineWorld world(1);
    world.config.async_scheduling = async;
    world.start_ready();
    world.ranks[0]->hold_answers = true;
    world.submit(prompt_of(6), 5);
    world.scheduler.run_until_idle();
    EXPECT_EQ(world.ranks[0]->held.size(), async ? 2u : 1u);
    world.ranks[0]->answer();
    world.scheduler.run_until_idle();
    EXPECT_EQ(world.ranks[0]->held.size(), async ? 2u : 1u);
  }
}

// A step of 10 ms is held until its time is over.
void run_steps(EngineWorld& world, int count) {
  for (int i = 0; i < count; ++i) {
    world.scheduler.advance(std::chrono::milliseconds(10));
    world.ranks[0]->answer();
    world.scheduler.run_until_idle();
  }
}

TEST(Engine, PlansAStepShortlyBeforeTheOneThatRunsEnds) {
  EngineWorld world(1);
  world.start_ready();
  MockRank& rank = *world.ranks[0];
  rank.hold_answers = true;
  const RequestId first = world.submit(prompt_of(2), 40);
  world.scheduler.run_until_idle();
  run_steps(world, 12);
  EXPECT_EQ(rank.held.size(), 1u) << "the next one is not planned yet";
  world.scheduler.advance(std::chrono::milliseconds(5));
  EXPECT_EQ(rank.held.size(), 1u);
  const RequestId second = world.submit(prompt_of(3), 1);
  world.scheduler.run_until_idle();
  EXPECT_EQ(rank.held.size(), 1u) << "a request that comes does not bring the step forward";
  world.scheduler.advance(std::chrono::milliseconds(4));
  ASSERT_EQ(rank.held.size(), 2u);
  EXPECT_EQ(rank.steps.back().runs[0].rows.slot.size(), 2u)
      << "it is in the step that is planned late";
  rank.hold_answers = false;
  while (!rank.held.empty()) rank.answer();
  world.scheduler.advance(std::chrono::seconds(1));
  EXPECT_EQ(world.answers[first].tokens, world.expected(prompt_of(2), 40));
  EXPECT_EQ(world.answers[second].tokens, world.expected(prompt_of(3), 1));
}

TEST(Engine, PlansAtOnceWhereRequestsWaitAlready) {
  EngineWorld world(1);
  world.start_ready();
  MockRank& rank = *world.ranks[0];
  rank.hold_answers = true;
  for (int i = 0; i < 5; ++i) world.submit(prompt_of(2), 40);  // one more than slots
  world.scheduler.run_until_idle();
  run_steps(world, 12);
  EXPECT_EQ(rank.held.size(), 2u);
}

TEST(Engine, AnIdleEngineSendsHeartbeatsAndCanaries_R11) {
  EngineWorld world(2);
  world.start_ready();
  const size_t before = world.scheduler.log().size();
  for (int second = 0; second < 60; ++second) {
    world.scheduler.advance(std::chrono::seconds(1));
    EXPECT_LT(world.engine->stats().seconds_since_last_answer, 10);
  }
  EXPECT_GE(world.ranks[0]->steps.size(), 10u);
  EXPECT_LE(world.ranks[0]->steps.size(), 15u) << "one in four seconds";
  EXPECT_LT(world.scheduler.log().size() - before, 1500u) << "120 heartbeats, a few turns each";
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.state, GroupState::kReady);
  // A canary is in no count.
  EXPECT_EQ(stats.requests_total + world.completed() + stats.requests_running, 0u);
  EXPECT_EQ(stats.prompt_tokens + stats.generated_tokens + stats.steps, 0u);
  for (const GraphUse& use : stats.graph_uses) EXPECT_EQ(use.count, 0u);
  EXPECT_TRUE(world.all_blocks_free());
}

TEST(Engine, WorkersThatDoNotAnswerACanaryAreFound_R11) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks[1]->hold_answers = true;  // its control thread beats, its device does not answer
  world.scheduler.advance(std::chrono::seconds(11));
  EXPECT_EQ(world.ranks[0]->steps.size(), 1u);
  EXPECT_GT(world.engine->stats().seconds_since_last_answer, 10);
  EXPECT_EQ(world.engine->stats().requests_running, 0u);
  world.scheduler.advance(
      std::chrono::seconds(120));  // no step was ever seen: the longest deadline
  EXPECT_EQ(world.engine->stats().state, GroupState::kWaiting);
  EXPECT_EQ(world.engine->stats().requests_failed, 0u);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_LT(world.engine->stats().seconds_since_last_answer, 1);
}

TEST(Engine, ARequestThatComesDuringACanaryIsAnswered) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  world.scheduler.advance(std::chrono::seconds(5));
  ASSERT_EQ(world.ranks[0]->held.size(), 1u);
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().requests_running, 1u);
  world.ranks[0]->hold_answers = false;
  while (!world.ranks[0]->held.empty()) world.ranks[0]->answer();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(6), 5));
  EXPECT_EQ(world.engine->stats().steps, 5u);
  EXPECT_EQ(world.engine->stats().prompt_tokens, 6u);
}

TEST(Engine, ARequestThatTakesLongerThanItsTimeEndsWithAnError) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  GenerateRequest request;
  request.prompt = prompt_of(6);
  request.sampling.max_tokens = 5;
  request.timeout = std::chrono::seconds(3);
  const RequestId late = world.submit(request);
  world.scheduler.advance(std::chrono::milliseconds(2900));
  EXPECT_EQ(world.answers[late].finishes, 0);
  world.scheduler.advance(std::chrono::milliseconds(200));
  EXPECT_EQ(world.answers[late].finish, FinishReason::kError);
  EXPECT_EQ(world.answers[late].error->code, ErrorCode::kDeadline);
  world.ranks[0]->hold_answers = false;
  while (!world.ranks[0]->held.empty()) world.ranks[0]->answer();
  const RequestId in_time = world.submit(request);
  world.scheduler.advance(std::chrono::seconds(4));
  EXPECT_EQ(world.answers[in_time].finish, FinishReason::kLength);
  EXPECT_TRUE(world.all_blocks_free());
}

TEST(Engine, EndsAreCountedByTheirReason) {
  EngineWorld world(1);
  MockRankOptions options;
  options.eos_every = 4;
  world.start_ready(options);
  const RequestId stopped = world.submit(prompt_of(5), 50);
  world.scheduler.run_until_idle();
  ASSERT_EQ(world.answers[stopped].finish, FinishReason::kStop);
  world.submit(prompt_of(5), 1);
  world.scheduler.run_until_idle();
  world.ranks[0]->hold_answers = true;
  world.engine->cancel(world.submit(prompt_of(5), 50));
  world.submit(prompt_of(5), 50);
  world.scheduler.run_until_idle();
  world.engine->stop();
  world.scheduler.run_until_idle();
  const EngineStats stats = world.engine->stats();
  EXPECT_EQ(stats.requests_stopped, 1u);
  EXPECT_EQ(stats.requests_at_length, 1u);
  EXPECT_EQ(stats.requests_aborted, 1u);
  EXPECT_EQ(stats.requests_failed, 1u);
}

TEST(Engine, EosEndsWithStopAndItsTextIsNotShown) {
  EngineWorld world(1);
  MockRankOptions options;
  options.eos_every = 4;
  world.start_ready(options);
  const std::vector<TokenId> prompt = prompt_of(5);
  const std::vector<TokenId> expected = world.expected(prompt, 50, 4);
  ASSERT_EQ(expected.back(), 0) << "this prompt must reach its eos";
  SamplingParams sampling;
  sampling.max_tokens = 50;
  sampling.skip_special_tokens = false;
  const RequestId id = world.submit(prompt, sampling);
  world.scheduler.run_until_idle();
  const Answer& answer = world.answers[id];
  EXPECT_EQ(answer.tokens, expected);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.stop_reason, "");
  EXPECT_EQ(answer.text,
            world.tokenizer->decode(std::span(expected).first(expected.size() - 1), false));
  EXPECT_TRUE(world.all_blocks_free());
}

TEST(Engine, AStopStringEndsTheRequestAndNoPartOfItIsShown) {
  EngineWorld world(1);
  world.start_ready();
  const std::vector<TokenId> tokens = world.expected(prompt_of(5), 30);
  const std::string text = world.tokenizer->decode(tokens, true);
  ASSERT_GT(text.size(), 12u);
  size_t from = 6;  // at a character's beginning, so that the stop is valid text
  while ((static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  const std::string stop = text.substr(from, 4);
  SamplingParams sampling;
  sampling.max_tokens = 30;
  sampling.stop = {stop};
  const RequestId cut = world.submit(prompt_of(5), sampling);
  sampling.include_stop_str_in_output = true;
  const RequestId included = world.submit(prompt_of(5), sampling);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[cut].text, text.substr(0, text.find(stop)));
  EXPECT_EQ(world.answers[cut].finish, FinishReason::kStop);
  EXPECT_EQ(world.answers[cut].stop_reason, stop);
  EXPECT_LT(world.answers[cut].tokens.size(), 30u);
  EXPECT_EQ(world.answers[included].text, text.substr(0, text.find(stop) + stop.size()));
  EXPECT_TRUE(world.all_blocks_free());
  EXPECT_EQ(world.engine->stats().requests_stopped, 2u);
}

TEST(Engine, LogprobsAreDeliveredToThoseWhoAsked) {
  EngineWorld world(1);
  MockRankOptions options;
  options.logprobs = true;
  world.start_ready(options);
  SamplingParams sampling;
  sampling.max_tokens = 2;
  const RequestId without = world.submit(prompt_of(5), sampling);
  sampling.logprobs = 2;
  const RequestId with = world.submit(prompt_of(5), sampling);
  world.scheduler.run_until_idle();
  EXPECT_TRUE(world.answers[without].outputs.at(0).top.empty());
  const TokenOutput& token = world.answers[with].outputs.at(1);
  EXPECT_EQ(token.logprob, testing::mock_logprob(token.token));
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[0].token, token.token);
}

TEST(Engine, ACancelledRequestFreesItsBlocksAndEndsWithAbort) {
  EngineWorld world(1);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId running = world.submit(prompt_of(6), 30);
  world.scheduler.run_until_idle();
  world.engine->cancel(running);
  world.engine->cancel(running);
  world.engine->cancel(12345);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[running].finish, FinishReason::kAbort);
  EXPECT_FALSE(world.all_blocks_free()) << "two steps in flight use them";
  world.ranks[0]->answer();
  world.ranks[0]->answer();
  world.scheduler.run_until_idle();
  EXPECT_TRUE(world.all_blocks_free());
  EXPECT_EQ(world.answers[running].finishes, 1);
  EXPECT_EQ(world.answers[running].tokens.size(), 0u);
}

TEST(Engine, RequestsThatComeWhileTheWorkersStartWaitForThem) {
  EngineWorld world(1);
  world.start();
  const RequestId first = world.submit(prompt_of(6), 3);
  const RequestId second = world.submit(prompt_of(7), 3);
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->stats().requests_waiting, 2u);
  world.engine->cancel(second);
  world.add_ranks();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[first].tokens, world.expected(prompt_of(6), 3));
  EXPECT_EQ(world.answers[second].finish, FinishReason::kAbort);
}

TEST(Engine, RefusesAtTheDoorWhatCannotRun) {
  EngineWorld world(1);
  world.config.max_queue = 1;
  world.start_ready();
  const auto submit = [&](std::vector<TokenId> prompt, SamplingParams sampling = {}) {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.sampling = std::move(sampling);
    return world.engine->submit(std::move(request), [](const RequestOutput&) {});
  };
  EXPECT_EQ(submit({}).error().field, "prompt");
  EXPECT_EQ(submit(prompt_of(64)).error().field, "prompt");
  EXPECT_EQ(submit({512}).error().field, "prompt");
  SamplingParams bad;
  bad.top_p = 0;
  EXPECT_EQ(submit({1}, bad).error().field, "top_p");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(submit({1}).has_value());
  EXPECT_EQ(submit({1}).error().code, ErrorCode::kOverloaded);
  world.scheduler.run_until_idle();
  EXPECT_TRUE(submit({1}).has_value());
}

TEST(Engine, ATokenOutsideTheVocabularyFencesTheGroup) {
  EngineWorld world(1);
  MockRankOptions options;
  options.vocab = 1 << 20;  // of the model's 512
  world.start_ready(options);
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  EXPECT_NE(world.engine->stats().state, GroupState::kReady);
  for (const TokenId token : world.answers[id].tokens) EXPECT_LT(token, 512);
}

TEST(Engine, DrainFinishesWhatRunsAndAdmitsNoMore) {
  EngineWorld world(1);
  world.start_ready();
  const RequestId id = world.submit(prompt_of(6), 5);
  int drained = 0;
  world.engine->drain([&] { ++drained; });
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].tokens.size(), 5u);
  EXPECT_EQ(drained, 1);
  GenerateRequest late;
  late.prompt = {1};
  EXPECT_EQ(world.engine->submit(late, [](const RequestOutput&) {}).error().code,
            ErrorCode::kUnavailable);
}

TEST(Engine, DrainOfAnIdleEngineIsDoneAtOnce) {
  EngineWorld world(1);
  world.start_ready();
  int drained = 0;
  world.engine->drain([&] { ++drained; });
  world.scheduler.run_until_idle();
  EXPECT_EQ(drained, 1);
}

TEST(Engine, StopEndsOutstandingRequestsWithAnErrorAndDismissesTheWorkers) {
  EngineWorld world(2);
  world.start_ready();
  world.ranks[0]->hold_answers = true;
  const RequestId id = world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  world.engine->stop();
  world.engine->stop();
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.answers[id].finish, FinishReason::kError);
  EXPECT_EQ(world.answers[id].error->code, ErrorCode::kUnavailable);
  for (const auto& rank : world.ranks) EXPECT_NE(rank->shut_down, "");
  EXPECT_EQ(world.states.back(), GroupState::kStopped);
}

TEST(Engine, CountsGraphUseAndListsKeysNeverReplayed) {  // CG-32
  EngineWorld world(1);
  world.start_ready();
  world.submit(prompt_of(6), 4);
  world.scheduler.run_until_idle();
  const EngineStats stats = world.engine->stats();
  ASSERT_GE(stats.graph_uses.size(), 3u);
  EXPECT_EQ(stats.graph_uses[0].mode, "FULL");
  EXPECT_EQ(stats.graph_uses[0].num_tokens, 1);
  EXPECT_EQ(stats.graph_uses[0].count, 3u);
  bool unused = false;
  for (const GraphUse& use : stats.graph_uses) unused |= use.padded_tokens == 8 && use.count == 0;
  EXPECT_TRUE(unused);
  ASSERT_EQ(stats.ready.size(), 1u);
  EXPECT_TRUE(contains(stats.state_detail, "ready"));
}

}  // namespace
}  // namespace refrain
