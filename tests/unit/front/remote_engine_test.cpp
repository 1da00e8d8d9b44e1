// A coordinator that dies, at every moment of a run: no stream has a gap, a repeat or another token
//
#include <gtest/gtest.h>

#include "tests/unit/front/front_world.h"
#include "tests/unit/sched/harness.h"

namespace refrain {
namespace {

using testing::Answer;
using testing::contains;
using testing::EngineWorld;
using testing::FrontWorld;
using testing::MockRankOptions;
using testing::prompt_of;

MockRankOptions all_kinds() {
  MockRankOptions options;
  options.num_kv_blocks = 18;
  options.logprobs = true;
  options.draws = true;
  return options;
}

// Greedy, with and without a seed, penalties, log-probabilities, a stop string; a prompt of chunks.
void submit_all(EngineWorld& world, const std::string& stop) {
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
  requests[3].sampling.logprobs = 2;
  requests[4].prompt = prompt_of(6);
  requests[4].sampling.max_tokens = 30;
  if (!stop.empty()) requests[4].sampling.stop = {stop};
  for (const GenerateRequest& request : requests) world.submit(request);
}

// Of a run without front and faults.
std::map<RequestId, Answer> undisturbed(const std::string& stop) {
  EngineWorld calm;
  calm.start_ready(all_kinds());
  submit_all(calm, stop);
  calm.scheduler.run_until_idle();
  return calm.answers;
}

std::string middle_of(const std::string& text) {
  size_t from = text.size() / 2;
  while ((static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  return text.substr(from, 5);
}

// Has the rank give so many answers; false: it had no more to give.
bool answer_steps(FrontWorld& world, int answers) {
  for (int i = 0; i < answers; ++i) {
    if (world.ranks.back()->held.empty()) return false;
    world.ranks.back()->answer();
    world.scheduler.run_until_idle();
  }
  return true;
}

class RemoteEngineTest : public ::testing::Test {
 protected:
  void hold_answers(FrontWorld& world) { world.ranks.back()->hold_answers = true; }
  void start(FrontWorld& world, const MockRankOptions& options = all_kinds()) {
    world.start_front();
    world.start_coordinator(options);
    world.pass(200);
    ASSERT_EQ(world.engine->health().state, GroupState::kReady);
  }
};

TEST_F(RemoteEngineTest, AnswersAreThoseOfAnEngineInTheProcess) {
  const auto expected = undisturbed("");
  FrontWorld world;
  start(world);
  submit_all(world, "");
  world.pass(50);
  for (const auto& [id, answer] : expected) expect_same(world.answers[id], answer);
}

TEST_F(RemoteEngineTest, ACoordinatorThatDiesInAnyStepChangesNoStream_R30) {
  const std::string stop = middle_of(undisturbed("").at(5).text);
  const auto expected = undisturbed(stop);
  ASSERT_EQ(expected.at(5).stop_reason, stop);
  int answers = 0;
  for (bool more = true; more; ++answers) {
    SCOPED_TRACE(fmt::format("after {} answers", answers));
    FrontWorld world(1, static_cast<uint64_t>(answers));
    start(world);
    hold_answers(world);
    submit_all(world, stop);
    world.scheduler.run_until_idle();
    more = answer_steps(world, answers);
    world.kill_coordinator();
    EXPECT_EQ(world.engine->health().state, GroupState::kWaiting);
    world.pass(100);
    world.start_coordinator(all_kinds());
    world.pass(300);
    for (const auto& [id, answer] : expected) {
      SCOPED_TRACE(fmt::format("request {}", id));
      expect_same(world.answers[id], answer);
    }
    const EngineStats stats = world.core->stats();
    EXPECT_EQ(stats.requests_failed + stats.requests_aborted, 0u);
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
    if (HasFailure()) return;
  }
  EXPECT_GT(answers, 20) << "every step of the run was a moment to die";
}

TEST_F(RemoteEngineTest, TwoDeathsAreBorneTheThirdEndsWhatWasInFlightAtAll) {
  FrontWorld world;
  world.start_front();
  const RequestId poison = world.submit(prompt_of(6), 40);
  RequestId late = 0;
  for (int death = 1; death <= 3; ++death) {
    SCOPED_TRACE(death);
    world.holds_answers = true;
    world.start_coordinator();
    world.pass(200);
    answer_steps(world, 3);
    if (death == 2) late = world.submit(prompt_of(9, 3), 10);
    world.scheduler.run_until_idle();
    EXPECT_EQ(world.answers[poison].finishes, 0);
    world.kill_coordinator();
  }
  ASSERT_EQ(world.answers[poison].finish, FinishReason::kError);
  EXPECT_TRUE(contains(world.answers[poison].error->message, "3 coordinators"));
  EXPECT_EQ(world.answers[late].finishes, 0);
  world.holds_answers = false;
  world.start_coordinator();
  world.pass(300);
  EXPECT_EQ(world.answers[late].tokens, world.expected(prompt_of(9, 3), 10));
}

TEST_F(RemoteEngineTest, WhatComesMeanwhileWaitsAsLongAsItMay_R17) {
  FrontWorld world;
  world.config.max_queue_wait = 1;
  world.start_front();
  GenerateRequest hurried;
  hurried.prompt = prompt_of(6);
  hurried.max_queue_wait = std::chrono::milliseconds(300);
  GenerateRequest timed;
  timed.prompt = prompt_of(6);
  timed.timeout = std::chrono::milliseconds(500);
  const RequestId first = world.submit(hurried), second = world.submit(timed);
  const RequestId third = world.submit(prompt_of(6), 5), fourth = world.submit(prompt_of(6), 5);
  world.engine->cancel(fourth);
  world.pass(400);
  EXPECT_EQ(world.answers[first].error->code, ErrorCode::kUnavailable);
  EXPECT_EQ(world.answers[second].finishes, 0);
  EXPECT_EQ(world.answers[fourth].finish, FinishReason::kAbort);
  EXPECT_EQ(world.engine->health().requests_waiting, 2u);
  world.pass(200);
  EXPECT_EQ(world.answers[second].error->code, ErrorCode::kDeadline);
  EXPECT_EQ(world.answers[third].finishes, 0);
  world.start_coordinator();
  world.pass(200);
  EXPECT_EQ(world.answers[third].tokens, world.expected(prompt_of(6), 5));
  EXPECT_EQ(world.engine->admission().late, 1u);
}

TEST_F(RemoteEngineTest, AFrontThatIsGoneTakesItsRequestsAlongAndTheNextServes) {
  FrontWorld world;
  start(world, {});
  hold_answers(world);
  world.submit(prompt_of(6), 40);
  world.scheduler.run_until_idle();
  answer_steps(world, 2);
  world.kill_front();
  world.ranks.back()->hold_answers = false;
  while (answer_steps(world, 1)) {
  }
  EXPECT_EQ(world.core->stats().requests_aborted, 1u);
  EXPECT_EQ(world.core->stats().blocks_free, world.core->stats().blocks_total);
  world.answers.clear();
  world.start_front();
  world.pass(300);
  const RequestId id = world.submit(prompt_of(9), 5);
  world.pass(50);
  EXPECT_EQ(world.answers[id].tokens, world.expected(prompt_of(9), 5));
}

TEST_F(RemoteEngineTest, ACoordinatorOfAnotherBuildIsNotTaken) {
  FrontWorld world;
  world.build_id = "another";
  world.start_front();
  world.start_coordinator();
  world.pass(300);
  EXPECT_EQ(world.engine->health().state, GroupState::kWaiting);
}

TEST_F(RemoteEngineTest, StatisticsAreThoseOfTheMomentTheyAreAskedFor) {
  FrontWorld world;
  start(world);
  world.submit(prompt_of(6), 5);
  world.scheduler.run_until_idle();
  std::optional<EngineStats> told;
  const auto ask = [&] {
    told.reset();
    world.engine->ask_stats([&](const EngineStats& stats, const AdmissionStats&) { told = stats; });
    world.scheduler.run_until_idle();
  };
  ask();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->requests_at_length, 1u);
  EXPECT_EQ(told->state, GroupState::kReady);
  EXPECT_EQ(told->ready.size(), 1u);
  world.kill_coordinator();
  ask();
  ASSERT_TRUE(told.has_value()) << "as they last were";
  EXPECT_EQ(told->requests_at_length, 1u);
  EXPECT_EQ(told->state, GroupState::kWaiting);
}

TEST_F(RemoteEngineTest, ADrainEndsWhenTheLastRequestHas) {
  FrontWorld world;
  start(world);
  hold_answers(world);
  const RequestId id = world.submit(prompt_of(6), 3);
  world.scheduler.run_until_idle();
  bool drained = false;
  world.engine->drain([&] { drained = true; });
  world.scheduler.run_until_idle();
  EXPECT_EQ(world.engine->accepting().error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(drained);
  while (answer_steps(world, 1)) {
  }
  EXPECT_EQ(world.answers[id].finish, FinishReason::kLength);
  EXPECT_TRUE(drained);
}

TEST_F(RemoteEngineTest, TheQueueIsBoundedInTheFront_R17) {
  FrontWorld world;
  world.config.max_queue = 2;
  world.start_front();
  for (int i = 0; i < world.config.worker.max_num_seqs + 2; ++i) world.submit(prompt_of(6), 3);
  GenerateRequest one_more;
  one_more.prompt = prompt_of(6);
  const auto refused = world.engine->submit(one_more, [](const RequestOutput&) {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  world.start_coordinator();
  world.pass(200);
  for (const auto& [id, answer] : world.answers) EXPECT_EQ(answer.finish, FinishReason::kLength);
}

}  // namespace
}  // namespace refrain
