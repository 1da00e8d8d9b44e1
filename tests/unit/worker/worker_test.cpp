// The worker actor and its device thread against a scripted coordinator.
#include <gmock/gmock.h>

#include <future>

#include "runtime/base/build_info.h"
#include "tests/unit/worker/worker_fixture.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

TEST_F(WorkerFixture, IntroducesItselfFirst) {
  start_worker();
  const auto hello = take<ipc::Hello>();
  ASSERT_TRUE(hello);
  const auto& message = std::get<ipc::Hello>(hello->message);
  EXPECT_EQ(hello->info.epoch, 0u);
  EXPECT_EQ(message.protocol_version, ipc::kProtocolVersion);
  EXPECT_EQ(message.build_id, build_id());
  EXPECT_EQ(message.model_digest, "digest");
  EXPECT_GT(message.pid, 0);
  EXPECT_THAT(message.device, HasSubstr("host"));
}

TEST_F(WorkerFixture, StartsServesStepsAndShutsDown) {
  start_worker();
  bring_up();
  EXPECT_EQ(group_token_, "group-1");
  for (StepId id = 1; id <= 5; ++id) send(step(id));
  for (StepId id = 1; id <= 5; ++id) {
    const auto frame = take<ipc::StepResult>();
    ASSERT_TRUE(frame);
    EXPECT_EQ(std::get<ipc::StepResult>(frame->message).step, id);
    EXPECT_EQ(frame->info.epoch, 1u);
  }
  send(ipc::Shutdown{"done"});
  EXPECT_TRUE(eventually([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(exit_code_, kExitOk);
  EXPECT_TRUE(device_->stop(kPatience));
  EXPECT_EQ(script_.destroyed, 1);
}

TEST_F(WorkerFixture, FramesOfAnEpochCountFromOneWithoutGap) {
  start_worker();
  bring_up(7);
  ipc::FrameGate gate(7);
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  received_.clear();
  const auto heartbeat = take<ipc::Heartbeat>();
  ASSERT_TRUE(heartbeat);
  const uint64_t first = heartbeat->info.sequence;
  const auto next = take<ipc::Heartbeat>();
  ASSERT_TRUE(next);
  EXPECT_GT(first, 1u);
  EXPECT_EQ(next->info.sequence, first + 1);
}

TEST_F(WorkerFixture, AGrammarIsCompiledBesideTheSteps) {
  start_worker();
  bring_up(7);
  send(ipc::Grammar{4, {'r', 'e', 'g', 'e', 'x', ':', 'b'}});  // takes for ever
  send(ipc::Grammar{5, {'r', 'e', 'g', 'e', 'x', ':', 'a'}});
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  const auto ready = take<ipc::GrammarReady>();
  ASSERT_TRUE(ready);
  EXPECT_EQ(std::get<ipc::GrammarReady>(ready->message).request, 5u);
}

TEST_F(WorkerFixture, ProgressIsThinnedButItsEndIsAlwaysTold) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  ASSERT_TRUE(eventually([&] { return count<ipc::Loaded>() == 1; }));
  EXPECT_LT(count<ipc::Progress>(), 50u);
  ipc::Progress last;
  while (count<ipc::Progress>() > 0) last = std::get<ipc::Progress>(take<ipc::Progress>()->message);
  EXPECT_EQ(last.done, 100);
}

TEST_F(WorkerFixture, ARefusalEndsItWithTheConfigurationCode) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  send(ipc::Refuse{"rank 0 is taken"}, {0, 1});
  EXPECT_TRUE(eventually([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(exit_code_, kExitConfig);
}

TEST_F(WorkerFixture, ARunnerThatCannotBeMadeIsAConfigurationFailure) {
  script_.create_error = Error{ErrorCode::kInvalidArgument, "9 heads do not spread", "num_heads"};
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_TRUE(std::get<ipc::Failed>(failed->message).configuration);
  EXPECT_THAT(std::get<ipc::Failed>(failed->message).message,
              HasSubstr("num_heads: 9 heads do not spread"));
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitConfig; }));
}

TEST_F(WorkerFixture, APeerThatIsMissingIsToTryAgain) {
  script_.load_error = Error{ErrorCode::kUnavailable, "rank 1 is missing", {}};
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_FALSE(std::get<ipc::Failed>(failed->message).configuration);
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitTryAgain; }));
}

TEST_F(WorkerFixture, RanksFindEachOtherThroughTheCoordinator) {
  script_.meets = true;
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  const auto told = take<ipc::RankAddress>();
  ASSERT_TRUE(told);
  EXPECT_EQ(std::get<ipc::RankAddress>(told->message),
            (ipc::RankAddress{"memory", "tcp://here:1", "key"}));
  send(ipc::Peers{{{}, {}, {}}});
  ASSERT_TRUE(take<ipc::Loaded>());
  EXPECT_EQ(script_.met, 3u);
}

// Its coordinator died between the two; the next one counts on this worker.
TEST_F(WorkerFixture, AGroupWhoseRanksNeverMeetMakesRoomForTheNext) {
  script_.meets = true;
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(1);
  ASSERT_TRUE(take<ipc::RankAddress>());
  welcome(2);
  ASSERT_TRUE(take<ipc::RankAddress>());
  send(ipc::Peers{{{}, {}}});
  ASSERT_TRUE(take<ipc::Loaded>());
  EXPECT_EQ(script_.met, 2u);
  EXPECT_FALSE(exit_code_.has_value());
}

TEST_F(WorkerFixture, RanksThatNeverMeetEndByTheDeadlineToBeTriedAgain) {
  script_.meets = true;
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  collective_timeout_ms_ = 10;
  welcome();
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(std::get<ipc::Failed>(failed->message).message,
              HasSubstr("not all ranks of the group have come"));
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitTryAgain; }));
}

TEST_F(WorkerFixture, ADeviceFailureIsReportedOnceWithItsStep) {
  script_.throw_at = 2;
  start_worker();
  bring_up();
  send(step(1));
  send(step(2));
  send(step(3));
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  const auto& message = std::get<ipc::Failed>(failed->message);
  EXPECT_EQ(message.step, 1u);  // the last that was finished
  EXPECT_THAT(message.message, HasSubstr("the device burned"));
  EXPECT_FALSE(message.configuration);
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitInternal; }));
  EXPECT_EQ(script_.steps, 1);
  EXPECT_EQ(count<ipc::Failed>(), 0u);
}

TEST_F(WorkerFixture, AStepBeforeReadyIsAFailure) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  ASSERT_TRUE(take<ipc::Loaded>());
  send(step(1));
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitInternal; }));
}

// Else a device is idle from the end of each step to the launch of the next.
TEST_F(WorkerFixture, AStepThatComesDuringAnotherIsSubmittedBeforeThatEnds) {
  late_device_ = true;
  script_.behind = true;
  start_worker();
  bring_up();
  send(step(1));
  ASSERT_TRUE(eventually([&] { return script_.looks > 0; })) << "it waits for step 1";
  EXPECT_EQ(script_.submitted, 1);
  send(step(2));
  ASSERT_TRUE(eventually([&] { return script_.submitted == 2; }));
  EXPECT_EQ(script_.steps, 0);
  send(step(3));
  scheduler_.run_until_idle();
  const int looks = script_.looks;
  ASSERT_TRUE(eventually([&] { return script_.looks > looks + 1; }));  // it has seen step 3
  EXPECT_EQ(script_.submitted, 2) << "more than two in flight";
  script_.behind = false;
  for (StepId id = 1; id <= 3; ++id) {
    const auto frame = take<ipc::StepResult>();
    ASSERT_TRUE(frame);
    EXPECT_EQ(std::get<ipc::StepResult>(frame->message).step, id);
  }
}

TEST_F(WorkerFixture, TheIdleDeviceLoopBeatsAndAHungOneDoesNot) {
  start_worker();
  bring_up();
  ASSERT_TRUE(take<ipc::Heartbeat>());
  ASSERT_TRUE(take<ipc::Heartbeat>());
  script_.hang_in_step = true;
  send(step(1));
  ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
  scheduler_.run_until_idle();
  received_.clear();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (std::chrono::steady_clock::now() < until) {   // ten intervals
    scheduler_.advance(std::chrono::milliseconds(5));  // the control actor lives on
    send(ipc::Heartbeat{});                            // and so does the coordinator
  }
  EXPECT_EQ(count<ipc::Heartbeat>(), 0u);
  script_.hang_in_step = false;
  const auto beat = take<ipc::Heartbeat>();
  ASSERT_TRUE(beat);
  ASSERT_TRUE(eventually([&] { return count<ipc::StepResult>() == 1; }));
  received_.clear();
  EXPECT_EQ(std::get<ipc::Heartbeat>(take<ipc::Heartbeat>()->message).last_step, 1u);
}

// From the control actor: how far the device is within a step that hangs.
TEST_F(WorkerFixture, TellsItsPositionWhenItIsReadyAndWhileADeviceHangs) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  ASSERT_TRUE(take<ipc::Loaded>());
  for (int i = 0; i < 10; ++i) scheduler_.advance(std::chrono::milliseconds(5));
  EXPECT_EQ(count<ipc::Position>(), 0u) << "it loads";
  send(ipc::InitCache{{64}});
  ASSERT_TRUE(take<ipc::Ready>());
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  script_.hang_in_step = true;
  send(step(2));
  ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
  scheduler_.run_until_idle();
  received_.clear();
  for (int i = 0; i < 4; ++i) {
    scheduler_.advance(std::chrono::milliseconds(5));
    const auto frame = take<ipc::Position>();
    ASSERT_TRUE(frame);
    const auto& position = std::get<ipc::Position>(frame->message);
    EXPECT_EQ(position.last_step, 1u);
    EXPECT_EQ(position.launches, static_cast<uint64_t>(FakeRunner::kLaunches));
    EXPECT_TRUE(position.counts_launches);
  }
  script_.hang_in_step = false;
  ASSERT_TRUE(take<ipc::StepResult>());
  received_.clear();
  scheduler_.advance(std::chrono::milliseconds(5));
  const auto after = take<ipc::Position>();
  ASSERT_TRUE(after);
  EXPECT_EQ(std::get<ipc::Position>(after->message).last_step, 2u);
  EXPECT_EQ(std::get<ipc::Position>(after->message).launches, 0u);
}

TEST_F(WorkerFixture, ADeviceThatDoesNotCountLaunchesTellsTheStepsSubmitted) {  // R-7, I8
  late_device_ = true;
  start_worker();
  bring_up();
  send(step(1));
  ASSERT_TRUE(take<ipc::StepResult>());
  script_.behind = true;
  send(step(2));
  ASSERT_TRUE(eventually([&] { return script_.submitted == 2; }));
  script_.hang_in_step = true;
  send(step(3));
  ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
  received_.clear();
  scheduler_.advance(std::chrono::milliseconds(5));
  const auto frame = take<ipc::Position>();
  ASSERT_TRUE(frame);
  const auto& position = std::get<ipc::Position>(frame->message);
  EXPECT_EQ(position.last_step, 1u);
  EXPECT_EQ(position.launches, 1u);
  EXPECT_FALSE(position.counts_launches);
}

TEST_F(WorkerFixture, StaleAndRepeatedFramesAreDropped) {
  start_worker();
  bring_up(5);
  send(step(9), {4, 3});          // a dead coordinator's
  send(step(9), {5, sequence_});  // a repetition
  send(step(1));
  const auto result = take<ipc::StepResult>();
  ASSERT_TRUE(result);
  EXPECT_EQ(std::get<ipc::StepResult>(result->message).step, 1u);
  EXPECT_EQ(script_.steps, 1);
  EXPECT_FALSE(exit_code_.has_value());
}

TEST_F(WorkerFixture, ALostFrameEndsTheWorker) {
  start_worker();
  bring_up();
  send(step(2), {epoch_, sequence_ + 2});
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitInternal; }));
  EXPECT_EQ(script_.steps, 0);
}

TEST_F(WorkerFixture, ThreeGarbledFramesInTenSecondsEndTheWorkerTwoDoNot) {
  start_worker();
  bring_up();
  const std::vector<std::byte> garbage(64, std::byte{0x5a});
  const auto send_garbage = [&] { ASSERT_TRUE(server_->send(peer_, garbage).has_value()); };
  send_garbage();
  send_garbage();
  scheduler_.run_until_idle();
  EXPECT_FALSE(exit_code_.has_value());
  scheduler_.advance(std::chrono::seconds(11));
  send_garbage();
  scheduler_.run_until_idle();
  EXPECT_FALSE(exit_code_.has_value());
  send_garbage();
  send_garbage();
  EXPECT_TRUE(eventually([&] { return exit_code_ == kExitInternal; }));
}

TEST_F(WorkerFixture, RepeatsHelloUntilItIsAnswered) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  scheduler_.advance(std::chrono::seconds(2));
  EXPECT_EQ(count<ipc::Hello>(), 0u);
  scheduler_.advance(std::chrono::seconds(2));
  EXPECT_EQ(count<ipc::Hello>(), 1u);
  received_.clear();
  welcome();
  ASSERT_TRUE(take<ipc::Loaded>());
}

TEST_F(WorkerFixture, ACoordinatorThatIsSilentFromItsWelcomeOnIsLookedForToo) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome();
  ASSERT_TRUE(take<ipc::Loaded>());
  received_.clear();
  scheduler_.advance(std::chrono::seconds(4));
  EXPECT_EQ(count<ipc::Hello>(), 0u);
  scheduler_.advance(std::chrono::seconds(2));
  EXPECT_EQ(count<ipc::Hello>(), 1u);
}

TEST_F(WorkerFixture, AnotherTensorParallelSizeIsAConfigurationFailure) {
  start_worker();
  ASSERT_TRUE(take<ipc::Hello>());
  welcome(1, 3);
  const auto failed = take<ipc::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(std::get<ipc::Failed>(failed->message).message,
              HasSubstr("tensor-parallel-size 3, this worker was started with 1"));
  EXPECT_EQ(exit_code_, kExitConfig);
}

TEST(DeviceThread, ADeviceThatDoesNotOpenIsAnError) {
  std::promise<void> opens;
  DeviceThread::Options options;
  options.make_device = [&]() -> Result<std::unique_ptr<Device>> {
    opens.get_future().wait();
    return fail(ErrorCode::kInternal, "too late");
  };
  DeviceThread device(std::move(options));
  const auto name = device.start(std::chrono::milliseconds(20));
  ASSERT_FALSE(name.has_value());
  EXPECT_EQ(exit_code(name.error().code), kExitTryAgain);
  EXPECT_THAT(name.error().message, HasSubstr("did not open within"));
  EXPECT_FALSE(device.stop(std::chrono::milliseconds(20)));
  opens.set_value();
  EXPECT_TRUE(device.stop(std::chrono::seconds(20)));
}

TEST_F(WorkerFixture, AHungDeviceThreadIsNoticedWhenStopping) {
  start_worker();
  bring_up();
  script_.hang_in_step = true;
  send(step(1));
  ASSERT_TRUE(eventually([&] { return script_.hanging.load(); }));
  EXPECT_FALSE(device_->stop(std::chrono::milliseconds(20)));
  script_.hang_in_step = false;
  EXPECT_TRUE(device_->stop(kPatience));
}

}  // namespace
}  // namespace refrain::worker
