// Two groups behind one engine (frame.md 5): the load is shared, requests of a lost group go on in
// the other one with exact tokens, and every request ends exactly once.

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"
#include "tests/unit/engine_actor/two_groups.h"

namespace refrain::testing {
namespace {

TEST_F(TwoGroups, ShareTheRequests) {
  start_both();
  std::vector<RequestId> ids;
  for (TokenId first = 10; first < 18; ++first)
    ids.push_back(world_.submit(group_prompt(first), 8));
  world_.scheduler.run_until_idle();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(world_.answers[ids[i]].finishes, 1);
  EXPECT_EQ(group(0).generated_tokens, group(1).generated_tokens);
  EXPECT_EQ(world_.engine->stats().generated_tokens, 64u);
}

TEST_F(TwoGroups, HaveNamesOfTheirOwn) {
  start_both();
  EXPECT_TRUE(contains(first_->group_token, "-g0-")) << first_->group_token;
  EXPECT_TRUE(contains(second_->group_token, "-g1-")) << second_->group_token;
}

TEST_F(TwoGroups, OneThatThereIsNotIsRefused_R4) {
  world_.start();
  MockRank& worker = add_worker(2);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(contains(worker.refused, "--group 2")) << worker.refused;
}

TEST_F(TwoGroups, ServeAsSoonAsOneIsReady) {
  world_.start();
  add_worker(1);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.engine->health().state, GroupState::kReady);
  const RequestId id = world_.submit(group_prompt(10), 8);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].finishes, 1);
  EXPECT_EQ(group(1).generated_tokens, 8u);
}

TEST_F(TwoGroups, RequestsOfALostOneGoOnInTheOther_R8_R10) {
  start_both();
  std::map<RequestId, std::vector<TokenId>> before;
  const auto submit_all = [&] {
    std::vector<RequestId> ids;
    for (TokenId first = 10; first < 14; ++first) {
      SamplingParams sampling;
      sampling.max_tokens = 30;
      sampling.seed = static_cast<uint64_t>(first);
      ids.push_back(world_.submit(group_prompt(first), sampling));
    }
    return ids;
  };
  const std::vector<RequestId> undisturbed = submit_all();
  world_.scheduler.run_until_idle();
  const std::vector<RequestId> disturbed = submit_all();
  first_->ends_with = [](const ipc::Step& step) { return step.step > 40; };
  for (int i = 0; i < 200 && !first_->dead; ++i) world_.scheduler.run_until_idle();
  ASSERT_TRUE(first_->dead) << "it got no work";
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  world_.scheduler.run_until_idle();
  for (size_t i = 0; i < disturbed.size(); ++i) {
    const Answer& answer = world_.answers[disturbed[i]];
    EXPECT_EQ(answer.finishes, 1);
    EXPECT_EQ(answer.finish, FinishReason::kLength);
    EXPECT_EQ(answer.tokens, world_.answers[undisturbed[i]].tokens);
  }
  EXPECT_EQ(world_.engine->health().state, GroupState::kReady);
  EXPECT_EQ(group(0).state, GroupState::kWaiting);
  EXPECT_EQ(group(0).group_restarts, 1u);
  EXPECT_EQ(group(1).group_restarts, 0u);
  EXPECT_GT(world_.engine->stats().requests_resumed, 0u);
  ASSERT_EQ(world_.losses.size(), 1u);
  EXPECT_EQ(world_.losses.front().group, 0);
  add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).state, GroupState::kReady);
}

TEST_F(TwoGroups, OneThatIsGivenUpLeavesTheOtherServing) {
  start_both();
  world_.engine->give_up_group(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).state, GroupState::kFailed);
  EXPECT_EQ(world_.engine->health().state, GroupState::kReady);
  const RequestId id = world_.submit(group_prompt(10), 8);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].finish, FinishReason::kLength);
  world_.engine->give_up_group(1);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.engine->health().state, GroupState::kFailed);
  EXPECT_FALSE(world_.engine->accepting().has_value());
}

TEST_F(TwoGroups, ARequestGoesWhereItsBeginningIsCached) {
  start_both();
  std::vector<TokenId> prompt(20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(100 + i);
  for (int i = 0; i < 4; ++i) {
    world_.submit(prompt, 2);
    world_.scheduler.run_until_idle();
  }
  EXPECT_EQ(world_.engine->stats().cached_prompt_tokens, 3u * 16u);
}

// A grammar is compiled by the ranks of the group that takes the request, and again by those of the
// one in which it goes on.
TEST_F(TwoGroups, AGrammarIsOfTheGroupThatHasTheRequest_R8) {
  start_both();
  first_->compiles_late = second_->compiles_late = true;
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = 6;
  sampling.grammar = "regex:[a-z]+";
  const RequestId id = world_.submit(group_prompt(10), sampling);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(first_->grammars, std::vector<RequestId>{id});
  EXPECT_TRUE(second_->grammars.empty());
  second_->say(ipc::GrammarReady{id});  // nobody asked
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).requests_waiting, 1u);
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  EXPECT_EQ(second_->grammars, std::vector<RequestId>{id});
  EXPECT_EQ(world_.answers[id].finishes, 0);
  second_->say(ipc::GrammarReady{id});
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[id].tokens, world_.expected(group_prompt(10), 6));
  EXPECT_EQ(group(1).generated_tokens, 6u);
}

TEST_F(TwoGroups, EachHasATrackOfStepsInTheTrace) {
  const tests::TemporaryDirectory folder;
  world_.config.trace_file = (folder.path() / "trace.json").string();
  start_both();
  const size_t greetings = first_->steps.size() + second_->steps.size();
  for (TokenId first = 10; first < 12; ++first) world_.submit(group_prompt(first), 8);
  world_.scheduler.run_until_idle();
  world_.kill(*second_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  world_.engine.reset();
  std::ifstream file(folder.path() / "trace.json");
  std::map<int, size_t> steps;
  int lost = 0;
  for (const nlohmann::json& event : nlohmann::json::parse(file)) {
    if (event["ph"] == "X") ++steps[event["tid"]];
    if (event["name"] == "workers lost") lost = event["tid"];
  }
  EXPECT_EQ(greetings, 0u);
  EXPECT_EQ(steps, (std::map<int, size_t>{{1, first_->steps.size()}, {3, second_->steps.size()}}));
  EXPECT_EQ(lost, 3);
}

class AdaptersOfTwoGroups : public TwoGroups {
 protected:
  AdaptersOfTwoGroups() {
    world_.config.max_cpu_loras = 4;
    world_.config.worker.max_loras = 1;
  }
  void load(const std::string& name) {
    world_.engine->load_adapter({name, "module", "digest", "", false},
                                [this](Status status) { done_.push_back(std::move(status)); });
    world_.scheduler.run_until_idle();
  }
  void loaded(MockRank& rank, const std::string& error = "") {
    rank.say(ipc::AdapterLoaded{1, error});
    world_.scheduler.run_until_idle();
  }
  void unload(const std::string& name) {
    world_.engine->unload_adapter(name,
                                  [this](Status status) { done_.push_back(std::move(status)); });
    world_.scheduler.run_until_idle();
  }
  RequestId submit(const std::string& name, TokenId first) {
    GenerateRequest request;
    request.prompt = group_prompt(first);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 6;
    request.adapter = world_.engine->find_adapter(name).value_or(0);
    EXPECT_NE(request.adapter, 0) << name;
    return world_.submit(std::move(request));
  }
  std::vector<TokenId> expected(AdapterId adapter, TokenId first) {
    return solo_run(group_prompt(first), 6, 64, 500, 0, {}, false, adapter);
  }

  std::vector<Status> done_;
};

TEST_F(AdaptersOfTwoGroups, AreThereWhenAllGroupsHaveThem) {
  start_both();
  first_->loads_late = second_->loads_late = true;
  load("one");
  loaded(*second_);
  EXPECT_TRUE(done_.empty());
  EXPECT_FALSE(world_.engine->find_adapter("one"));
  loaded(*first_);
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_TRUE(done_.front().has_value());
  const RequestId in_first = submit("one", 10), in_second = submit("one", 20);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[in_first].tokens, expected(1, 10));
  EXPECT_EQ(world_.answers[in_second].tokens, expected(1, 20));
  EXPECT_EQ(group(0).generated_tokens, group(1).generated_tokens);
  unload("one");
  EXPECT_EQ(done_.size(), 2u);
  EXPECT_TRUE(first_->adapters.empty());
  EXPECT_TRUE(second_->adapters.empty());
}

TEST_F(AdaptersOfTwoGroups, AreLoadedByAGroupThatComesBack_R8) {
  start_both();
  load("one");
  const RequestId in_first = submit("one", 10), in_second = submit("one", 20);
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[in_first].tokens, expected(1, 10));
  EXPECT_EQ(world_.answers[in_second].tokens, expected(1, 20));
  first_ = &add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(first_->adapters, std::vector<AdapterId>{1});
  EXPECT_EQ(second_->adapters, std::vector<AdapterId>{1});
}

TEST_F(AdaptersOfTwoGroups, OneThatGoesIsLoadedAgainForItsLastRequest_R8) {
  start_both();
  load("one");
  first_->hold_answers = true;
  const RequestId last = submit("one", 10);
  unload("one");
  EXPECT_EQ(done_.size(), 1u);
  for (MockRank* rank : {second_, first_}) {
    world_.kill(*rank);
    world_.scheduler.advance(std::chrono::milliseconds(50));
  }
  first_ = &add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[last].tokens, expected(1, 10));
  EXPECT_EQ(done_.size(), 2u);
  EXPECT_TRUE(first_->adapters.empty());
}

TEST_F(AdaptersOfTwoGroups, AGroupThatIsLostMeanwhileIsNotWaitedFor) {
  start_both();
  first_->loads_late = second_->loads_late = true;
  load("one");
  loaded(*second_);
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_TRUE(done_.front().has_value()) << done_.front().error().message;
  world_.kill(*second_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  load("two");
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_FALSE(done_.back().has_value());
}

TEST_F(AdaptersOfTwoGroups, OneThatAGroupRefusesIsInNone) {
  start_both();
  first_->refuses_adapters = "rank 7 of 8 is no rank";
  load("one");
  ASSERT_EQ(done_.size(), 1u);
  ASSERT_FALSE(done_.front().has_value());
  EXPECT_TRUE(contains(done_.front().error().message, "rank 7 of 8"))
      << done_.front().error().message;
  EXPECT_TRUE(first_->adapters.empty());
  EXPECT_TRUE(second_->adapters.empty());
  EXPECT_FALSE(world_.engine->find_adapter("one"));
}

// It was served before: its requests end with the reason, and others go on.
TEST_F(AdaptersOfTwoGroups, OneThatTheNextWorkersRefuseIsGone) {
  start_both();
  load("one");
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  second_->hold_answers = true;
  const RequestId with = submit("one", 10), without = world_.submit(group_prompt(20), 6);
  world_.scheduler.run_until_idle();
  first_ = &add_worker(0);
  first_->refuses_adapters = "the file is gone";
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[with].finish, FinishReason::kError);
  EXPECT_FALSE(world_.engine->find_adapter("one"));
  EXPECT_EQ(second_->adapters, std::vector<AdapterId>{1}) << "a step in flight uses it";
  second_->hold_answers = false;
  while (!second_->held.empty()) second_->answer();
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[without].finish, FinishReason::kLength);
  EXPECT_TRUE(first_->adapters.empty());
  EXPECT_TRUE(second_->adapters.empty());
}

// Kills at random, of either group: whatever comes, every request ends once, and all its tokens are
// those of a run without a loss.
class TwoGroupsSeeds : public TwoGroups {
 protected:
  TwoGroupsSeeds() : TwoGroups(GetParam()) {}
};

TEST_P(TwoGroupsSeeds, EveryRequestEndsOnce_R8) {
  start_both();
  std::vector<MockRank*> workers = {first_, second_};
  std::vector<std::pair<RequestId, TokenId>> ids;
  for (int round = 0; round < 12; ++round) {
    const auto first = static_cast<TokenId>(10 + round);
    SamplingParams greedy;
    greedy.temperature = 0;
    greedy.max_tokens = 20;
    ids.emplace_back(world_.submit(group_prompt(first), greedy), first);
    world_.scheduler.advance(std::chrono::milliseconds(world_.scheduler.random(30)));
    const size_t victim = world_.scheduler.random(4);
    if (victim >= workers.size()) continue;
    world_.kill(*workers[victim]);
    world_.scheduler.advance(std::chrono::milliseconds(world_.scheduler.random(60)));
    world_.scheduler.advance(std::chrono::milliseconds(30));
    workers[victim] = &add_worker(static_cast<int32_t>(victim));
  }
  world_.scheduler.advance(std::chrono::seconds(2));
  world_.scheduler.run_until_idle();
  for (const auto& [id, first] : ids) {
    const Answer& answer = world_.answers[id];
    ASSERT_EQ(answer.finishes, 1) << "request " << id;
    // One that was alone at two losses in a row is taken for their cause.
    if (answer.finish == FinishReason::kError) continue;
    EXPECT_EQ(answer.tokens, world_.expected(group_prompt(first), 20));
  }
  EXPECT_TRUE(world_.all_blocks_free());
}
INSTANTIATE_TEST_SUITE_P(Seeds, TwoGroupsSeeds, ::testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace refrain::testing
