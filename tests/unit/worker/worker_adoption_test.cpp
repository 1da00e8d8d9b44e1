// A worker whose coordinator is gone, and those that come after.
#include <gmock/gmock.h>

#include "tests/unit/worker/worker_fixture.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

TEST_F(WorkerFixture, ASilentCoordinatorIsLookedForAndItsSuccessorAdoptsTheGroup_R10) {
  start_worker();
  bring_up(1);
  send(ipc::Heartbeat{0, 1});
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(4));
  EXPECT_EQ(count<ipc::Hello>(), 0u);
  scheduler_.advance(std::chrono::seconds(2));
  const auto hello = take<ipc::Hello>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).held_group, "group-1");
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).last_epoch, 1u);
  received_.clear();
  welcome(2);
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(std::get<ipc::Loaded>(loaded->message).kept);
  EXPECT_EQ(std::get<ipc::Loaded>(loaded->message).groups.at(0).num_blocks, 64);
  send(ipc::InitCache{{64}});
  ASSERT_TRUE(take<ipc::Ready>());
  send(step(1), {1, 3});  // a late frame of the dead coordinator
  send(step(1));
  const auto result = take<ipc::StepResult>();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->info.epoch, 2u);
  EXPECT_EQ(script_.steps, 1);
  EXPECT_EQ(script_.created, 1);
  EXPECT_EQ(script_.captured, 1);
  EXPECT_FALSE(exit_code_.has_value());
}

TEST_F(WorkerFixture, ADeadCoordinatorIsNoticedByItsProcessAndStepsOfItAreFinishedUnheard_R10) {
  watch_process_ = true;
  start_worker();
  bring_up(5);
  EXPECT_EQ(watched_pid_, 4711);
  send(ipc::Heartbeat{0, 1});
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(60));  // it may be stopped; it is not gone
  EXPECT_EQ(count<ipc::Hello>(), 0u);
  script_.hang_in_step = true;
  send(step(1));
  ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
  coordinator_gone_();
  received_.clear();
  scheduler_.advance(std::chrono::milliseconds(60));
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(6);
  scheduler_.run_until_idle();
  script_.hang_in_step = false;
  ASSERT_TRUE(take<ipc::Loaded>());
  send(ipc::InitCache{{64}});
  ASSERT_TRUE(take<ipc::Ready>());
  EXPECT_EQ(script_.steps, 1);
  EXPECT_EQ(count<ipc::StepResult>(), 0u);
}

TEST_F(WorkerFixture, AnOrphanLeavesToTryAgainAfterItsTimeout_R10) {
  watch_process_ = true;
  WorkerOptions options;
  options.orphan_timeout = std::chrono::seconds(10);
  start_worker(options);
  bring_up();
  coordinator_gone_();
  scheduler_.advance(std::chrono::seconds(9));
  EXPECT_FALSE(exit_code_.has_value());
  scheduler_.advance(std::chrono::seconds(2));
  EXPECT_EQ(exit_code_, kExitTryAgain);
}

TEST_F(WorkerFixture, ASuccessorWithAnotherConfigurationGetsAFreshGroup_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator());
  welcome(2, 1, 128);
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_FALSE(std::get<ipc::Loaded>(loaded->message).kept);
  EXPECT_EQ(group_token_, "group-2");
  EXPECT_EQ(script_.created, 2);
  EXPECT_EQ(script_.destroyed, 1);
}

// What the captures left is what there is, for its successors too.
TEST_F(WorkerFixture, ReadyTellsOfTheBlocksThatThereAre_CG25) {
  script_.blocks_lost_to_graphs = 4;
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(1);
  ASSERT_TRUE(take<ipc::Loaded>());
  send(ipc::InitCache{{64}});
  const auto ready = take<ipc::Ready>();
  ASSERT_TRUE(ready);
  EXPECT_EQ(std::get<ipc::Ready>(ready->message).num_blocks, std::vector<int64_t>{60});
  scheduler_.advance(std::chrono::seconds(6));
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(2);
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(std::get<ipc::Loaded>(loaded->message).groups.at(0).num_blocks, 60);
}

// The process stays, and so do weights and blocks; graphs are captured before it serves again.
TEST_F(WorkerFixture, AnotherRoleOfTheGroupCostsItsGraphsAlone_CG23) {
  WorkerOptions options;
  options.role = "prefill";
  start_worker(options);
  cudagraph_mode_ = "PIECEWISE";
  bring_up(1);
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  received_.clear();
  send(ipc::TakeRole{ipc::GroupRole::kDecode});
  const auto hello = take<ipc::Hello>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).held_group, "group-1");
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).last_epoch, 1u);
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).role, "decode") << "it would be refused";
  cudagraph_mode_ = "FULL_DECODE_ONLY";
  welcome(2);
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(std::get<ipc::Loaded>(loaded->message).kept);
  EXPECT_EQ(script_.captured, 1);
  send(ipc::InitCache{{64}});
  ASSERT_TRUE(take<ipc::Ready>());
  EXPECT_EQ(script_.role_mode, "FULL_DECODE_ONLY");
  EXPECT_EQ(script_.captured, 2);
  EXPECT_EQ(script_.created, 1);
  EXPECT_EQ(group_token_, "group-1");
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  // And what it captured then is what a successor finds.
  scheduler_.advance(std::chrono::seconds(6));
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(3);
  ASSERT_TRUE(take<ipc::Loaded>());
  send(ipc::InitCache{{64}});
  ASSERT_TRUE(take<ipc::Ready>());
  EXPECT_EQ(script_.captured, 2);
  EXPECT_FALSE(exit_code_.has_value());
}

TEST_F(WorkerFixture, AnOrphanThatWasNotReadyHasNothingToOffer_R10) {
  watch_process_ = true;
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  ASSERT_TRUE(take<ipc::Loaded>());
  coordinator_gone_();
  scheduler_.advance(std::chrono::seconds(1));
  const auto hello = take<ipc::Hello>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<ipc::Hello>(hello->message).held_group, "");
}

TEST_F(WorkerFixture, AnAdoptedDeviceThatStaysInItsOldStepEndsTheWorker_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator(/*in_step=*/true));
  welcome(2);
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(4));
  EXPECT_EQ(exit_code_, kExitInternal);
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(std::get<ipc::Failed>(failed->message).message, HasSubstr("did not finish"));
}

// Found by the simulation (seed 18830 of 2026-11-21): nothing else notices it during a start.
TEST_F(WorkerFixture, ADeviceThatStaysInItsOldStepWhenItShallStartAnewEndsTheWorkerToo_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator(/*in_step=*/true));
  welcome(2, 1, 128);  // another configuration
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(2));
  EXPECT_FALSE(exit_code_.has_value());
  held_group_.clear();
  welcome(3, 1, 128);  // another coordinator does not end the watch
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(4));
  EXPECT_EQ(exit_code_, kExitInternal);
}

TEST_F(WorkerFixture, AGroupThatBeginsAnewMayTakeItsTimeOnceTheDeviceHasLeftTheOldOne_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator());
  welcome(2, 1, 128);
  ASSERT_TRUE(take<ipc::Loaded>());
  send(ipc::Heartbeat{0, 1});
  scheduler_.run_until_idle();
  scheduler_.advance(std::chrono::seconds(10));
  EXPECT_FALSE(exit_code_.has_value());
}

// Found by the simulation (seed 15608 of 2026-11-21): a stopped rank's Hello waits in a queue, so
// that two coordinators answer it. It loaded anew while the second one's other ranks were adopted.
TEST_F(WorkerFixture, TwoCoordinatorsThatTookItsHelloBothAdoptIt_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator());
  welcome(2);
  welcome(3);
  EXPECT_TRUE(eventually([&] { return count<ipc::Loaded>() > 0; }));
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->info.epoch, 3u);
  EXPECT_TRUE(std::get<ipc::Loaded>(loaded->message).kept);
  EXPECT_EQ(script_.created, 1);
}

TEST_F(WorkerFixture, AWelcomeThatCountsOnGraphsThatAreGoneEndsTheWorker_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator());
  welcome(2, 1, 128);
  ASSERT_TRUE(take<ipc::Loaded>());
  welcome(3);  // of another coordinator, to the same Hello
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitTryAgain; }));
}

TEST_F(WorkerFixture, AWelcomeThatCountsOnNothingBeginsAnew_R10) {
  ASSERT_NO_FATAL_FAILURE(bring_up_and_lose_coordinator());
  held_group_.clear();  // to a Hello of before it was ready
  welcome(2);
  const auto loaded = take<ipc::Loaded>();
  ASSERT_TRUE(loaded);
  EXPECT_FALSE(std::get<ipc::Loaded>(loaded->message).kept);
}

}  // namespace
}  // namespace refrain::worker
