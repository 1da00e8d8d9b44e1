// What an operator asks of single groups while the others serve: drained, restarted and given
// another role, and no request is lost for it.

#include <gtest/gtest.h>

#include "tests/unit/engine_actor/two_groups.h"
#include "tests/unit/engine_actor/two_roles.h"

namespace refrain::testing {
namespace {

// What came of it.
struct Asked {
  int answers = 0;
  std::string error;
};

class ControlledGroups : public TwoGroups {
 protected:
  std::shared_ptr<Asked> ask(int32_t group, GroupOrder::What what) {
    auto asked = std::make_shared<Asked>();
    world_.engine->control_group({group, what}, [asked](const Status& status) {
      ++asked->answers;
      if (!status) asked->error = status.error().message;
    });
    return asked;
  }
  std::vector<RequestId> submit_all(size_t tokens) {
    std::vector<RequestId> ids;
    for (TokenId first = 10; first < 16; ++first) {
      SamplingParams sampling;
      sampling.max_tokens = static_cast<int64_t>(tokens);
      sampling.seed = static_cast<uint64_t>(first);
      ids.push_back(world_.submit(group_prompt(first), sampling));
    }
    return ids;
  }
  void expect_same(const std::vector<RequestId>& ids, const std::vector<RequestId>& undisturbed) {
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(world_.answers[ids[i]].finishes, 1);
      EXPECT_EQ(world_.answers[ids[i]].finish, FinishReason::kLength);
      EXPECT_EQ(world_.answers[ids[i]].tokens, world_.answers[undisturbed[i]].tokens);
    }
  }
};

TEST_F(ControlledGroups, ADrainedOneEndsWhatItHasAndTakesNoMore_R11) {
  start_both();
  const auto before = submit_all(20);
  world_.scheduler.run_until_idle();
  const uint64_t generated = group(0).generated_tokens;
  const auto running = submit_all(20);
  const auto asked = ask(0, GroupOrder::What::kDrain);
  const auto later = submit_all(20);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(asked->answers, 1);
  EXPECT_EQ(asked->error, "");
  EXPECT_TRUE(group(0).held);
  const uint64_t ended = group(0).generated_tokens;
  EXPECT_GT(ended, generated) << "it has ended what it had";
  expect_same(running, before);
  expect_same(later, before);
  submit_all(20);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).generated_tokens, ended);
  EXPECT_EQ(ask(0, GroupOrder::What::kResume)->answers, 0);
  world_.scheduler.run_until_idle();
  EXPECT_FALSE(group(0).held);
  submit_all(20);
  world_.scheduler.run_until_idle();
  EXPECT_GT(group(0).generated_tokens, ended);
  EXPECT_TRUE(world_.losses.empty());
}

TEST_F(ControlledGroups, OneThatStartsAgainLosesNothingAndCountsAsNoLoss) {
  start_both();
  const auto before = submit_all(20);
  world_.scheduler.run_until_idle();
  const auto running = submit_all(20);
  const auto asked = ask(0, GroupOrder::What::kRestart);
  const auto again = ask(0, GroupOrder::What::kRestart);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(again->error, "group 0 is told to drain or to start again already");
  EXPECT_EQ(asked->answers, 0);
  EXPECT_EQ(group(0).state, GroupState::kWaiting);
  ASSERT_EQ(world_.losses.size(), 1u);
  EXPECT_TRUE(world_.losses.front().planned);
  EXPECT_EQ(world_.losses.front().num_requests, 0u);
  const auto meanwhile = submit_all(20);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(asked->answers, 0);
  add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(asked->answers, 1);
  EXPECT_EQ(asked->error, "");
  EXPECT_EQ(group(0).state, GroupState::kReady);
  EXPECT_FALSE(group(0).held);
  EXPECT_EQ(group(0).group_restarts, 0u);
  EXPECT_EQ(world_.engine->stats().requests_resumed, 0u);
  expect_same(running, before);
  expect_same(meanwhile, before);
}

TEST_F(ControlledGroups, OneThatIsLostWhileItDrainsComesBackAsItWas) {
  start_both();
  const auto before = submit_all(20);
  world_.scheduler.run_until_idle();
  const auto running = submit_all(20);
  first_->hold_answers = true;
  world_.scheduler.run_until_idle();
  const auto asked = ask(0, GroupOrder::What::kRestart);
  world_.scheduler.run_until_idle();
  world_.kill(*first_);
  world_.scheduler.advance(std::chrono::milliseconds(50));
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(contains(asked->error, "group 0 was lost meanwhile")) << asked->error;
  add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_FALSE(group(0).held);
  EXPECT_EQ(group(0).group_restarts, 1u);
  expect_same(running, before);
}

// Its requests take longer than it may: they go on in the other group, and no one is a suspect.
TEST_F(ControlledGroups, WhatAGroupHasNotEndedInTimeGoesOnInTheOtherOne_R8) {
  world_.config.drain_timeout = 0;
  start_both();
  const auto before = submit_all(40);
  world_.scheduler.run_until_idle();
  const auto running = submit_all(40);
  first_->hold_answers = true;
  world_.scheduler.run_until_idle();
  const auto asked = ask(0, GroupOrder::What::kRestart);
  world_.scheduler.run_until_idle();
  world_.scheduler.advance(std::chrono::milliseconds(1));
  world_.scheduler.run_until_idle();
  ASSERT_EQ(world_.losses.size(), 1u);
  EXPECT_GT(world_.losses.front().num_requests, 0u);
  expect_same(running, before);
  add_worker(0);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(asked->error, "");
  EXPECT_EQ(asked->answers, 1);
}

// In flight at two losses in a row it would be a suspect.
TEST(ControlledGroup, ARestartThatWasAskedForMakesNobodyASuspect) {
  EngineWorld world;
  world.config.drain_timeout = 0;
  world.start_ready();
  int isolations = 0;
  world.engine->on_isolation([&](Isolation isolation) { isolations += isolation.on ? 1 : 0; });
  world.newest(0).hold_answers = true;
  const RequestId id = world.submit(group_prompt(10), 8);
  world.scheduler.run_until_idle();
  for (const bool holds : {true, false}) {
    world.engine->control_group({0, GroupOrder::What::kRestart}, [](const Status&) {});
    world.scheduler.run_until_idle();
    world.scheduler.advance(std::chrono::milliseconds(1));
    world.add_ranks();
    world.newest(0).hold_answers = holds;
    world.scheduler.run_until_idle();
  }
  EXPECT_EQ(world.losses.size(), 2u);
  EXPECT_EQ(isolations, 0);
  EXPECT_EQ(world.answers[id].finish, FinishReason::kLength);
}

TEST_F(ControlledGroups, WhatCannotBeAskedIsRefused) {
  start_both();
  const auto nobody = ask(2, GroupOrder::What::kDrain);
  world_.engine->give_up_group(1);
  world_.scheduler.run_until_idle();
  const auto failed = ask(1, GroupOrder::What::kRestart);
  const auto drained = ask(0, GroupOrder::What::kDrain);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(nobody->error, "group 2 is not there; it must be 0 to 1");
  EXPECT_EQ(failed->error, "group 1 has failed and is not started again");
  EXPECT_EQ(drained->error, "");
  const RequestId waits = world_.submit(group_prompt(10), 8);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[waits].finishes, 0) << "no group takes it; it is not refused";
  ask(0, GroupOrder::What::kResume);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.answers[waits].finish, FinishReason::kLength);
}

// Both groups change places; their workers stay, and are told the mode of their role (CG-2).
TEST_F(Roles, AGroupMayTakeAnotherRole_CG2_CG23) {
  start_both();
  const auto give = [this](int32_t index, ipc::GroupRole role) {
    auto answered = std::make_shared<std::string>("no answer");
    world_.engine->control_group(
        {index, GroupOrder::What::kRestart, role},
        [answered](const Status& status) { *answered = status ? "" : status.error().message; });
    world_.scheduler.run_until_idle();
    EXPECT_EQ(*answered, "");
  };
  const auto prompt = prompt_from(10);
  const RequestId before = submit(prompt, 12);
  give(0, ipc::GroupRole::kDecode);
  give(1, ipc::GroupRole::kPrefill);
  std::swap(prefill_, decode_);
  decode_->steps.clear();
  expect_answer(before, prompt, 12);
  EXPECT_TRUE(world_.losses.empty()) << "no process ends";
  EXPECT_EQ(decode_->roles, std::vector{ipc::GroupRole::kDecode});
  EXPECT_EQ(group(0).state_detail, "1 rank ready, with the graphs of another role");
  EXPECT_EQ(decode_->config().cudagraph_mode, "FULL_DECODE_ONLY");
  EXPECT_EQ(prefill_->config().cudagraph_mode, "PIECEWISE");
  EXPECT_EQ(group(0).role, ipc::GroupRole::kDecode);
  const uint64_t moved = group(0).transfers.done;
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
  EXPECT_EQ(group(0).transfers.done, moved + 1);
  EXPECT_FALSE(computes_prompts(*decode_));
  EXPECT_EQ(world_.engine->stats().requests_resumed, 0u);
  expect_nothing_left();
}

// Its successor begins anew, and has the role all the same.
TEST_F(Roles, AWorkerThatEndsInsteadOfTakingTheRoleIsReplaced_CG23) {
  start_both();
  decode_->ends_for_role = true;
  bool done = false;
  world_.engine->control_group({1, GroupOrder::What::kRestart, ipc::GroupRole::kBoth},
                               [&done](const Status& status) { done = status.has_value(); });
  world_.scheduler.run_until_idle();
  EXPECT_FALSE(done);
  world_.gone_pids.insert(decode_->options.pid);
  decode_ = &add_worker(1);
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(done);
  EXPECT_EQ(group(1).role, ipc::GroupRole::kBoth);
  EXPECT_EQ(group(1).state, GroupState::kReady);
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  expect_answer(id, prompt, 12);
}

// Found by the simulation (seed 1447 of 2026-11-25): a rank whose line was cut never hears of it.
TEST_F(Roles, AWorkerThatDoesNotHearOfTheRoleIsKilled_CG23) {
  start_both();
  decode_->dead = true;
  world_.engine->control_group({1, GroupOrder::What::kRestart, ipc::GroupRole::kBoth},
                               [](const Status&) {});
  world_.scheduler.run_until_idle();
  world_.scheduler.advance(std::chrono::milliseconds(1900));
  EXPECT_TRUE(world_.killed.empty());
  world_.scheduler.advance(std::chrono::milliseconds(200));
  EXPECT_EQ(world_.killed, std::vector{decode_->options.pid});
}

TEST_F(Roles, AGroupIsNotDrainedWhileAReaderHasItsBlocks_R28) {
  start_both();
  decode_->hold_pulls = true;
  const auto prompt = prompt_from(10);
  const RequestId id = submit(prompt, 12);
  world_.scheduler.run_until_idle();
  EXPECT_EQ(group(0).leases, 1u);
  world_.engine->control_group({0, GroupOrder::What::kRestart}, [](const Status&) {});
  world_.scheduler.run_until_idle();
  EXPECT_TRUE(world_.losses.empty()) << "its blocks are still read";
  ASSERT_EQ(decode_->held_pulls.size(), 1u);
  decode_->pull(decode_->held_pulls.front());
  world_.scheduler.run_until_idle();
  EXPECT_EQ(world_.losses.size(), 1u);
  expect_answer(id, prompt, 12);
  EXPECT_EQ(group(1).transfers.failed, 0u);
}

}  // namespace
}  // namespace refrain::testing
