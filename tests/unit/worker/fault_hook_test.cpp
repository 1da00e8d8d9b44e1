#include "worker/worker/fault_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain::worker {
namespace {

using testing::HasSubstr;

std::unique_ptr<Device> small_device() {
  HostDeviceOptions options;
  options.memory_limit = size_t{64} << 20;
  return std::move(*create_host_device(options));
}

ipc::Step step_of(StepId id, std::vector<TokenId> tokens = {}) {
  ipc::Step step;
  step.runs.resize(1);
  step.step = id;
  step.runs[0].rows.token_ids = std::move(tokens);
  return step;
}

FaultHook hook(std::string_view spec) { return FaultHook(parse_fault(spec).value()); }

TEST(FaultSpec, ReadsEveryKey) {
  const auto spec = parse_fault("kind=slow,rank=1,step=20,token=7,ms=30,steps=4,free_mib=2");
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->kind, FaultKind::kSlow);
  EXPECT_EQ(spec->rank, 1);
  EXPECT_EQ(spec->step, StepId{20});
  EXPECT_EQ(spec->token, TokenId{7});
  EXPECT_EQ(spec->ms, 30);
  EXPECT_EQ(spec->steps, 4);
  EXPECT_EQ(spec->free_mib, 2);
}

TEST(FaultSpec, TellsWhatTransfersMeet) {
  EXPECT_EQ(hook("kind=spin").of_transfers().one_in, 0);
  EXPECT_EQ(hook("kind=lose,one_in=9").of_transfers().one_in, 9);
  EXPECT_EQ(hook("kind=lose").of_transfers().hold.count(), 0);
  const PlannedFaults held = hook("kind=hold,one_in=3,steps=2,ms=60000").of_transfers();
  EXPECT_EQ(held.one_in, 3);
  EXPECT_EQ(held.held, 2);
  EXPECT_EQ(held.hold, std::chrono::minutes(1));
}

TEST(FaultSpec, RefusesWhatItDoesNotKnow) {
  for (const char* bad : {"", "spin", "rank=1", "kind=melt", "kind=spin,rank=-1", "kind=spin,ms=x",
                          "kind=spin,colour=2", "kind=spin,step=1.5"}) {
    const auto spec = parse_fault(bad);
    ASSERT_FALSE(spec) << bad;
    EXPECT_EQ(spec.error().field, "fault") << bad;
  }
}

TEST(FaultHook, ASkippedStepIsFollowedByNone) {
  const auto device = small_device();
  FaultHook fault = hook("kind=skip,step=2");
  EXPECT_TRUE(fault.before_step(step_of(1), *device));
  EXPECT_FALSE(fault.before_step(step_of(2), *device));
  EXPECT_FALSE(fault.before_step(step_of(3), *device));
}

TEST(FaultHook, WithoutAStepItWaitsForTheSignal) {
  const auto device = small_device();
  FaultHook fault = hook("kind=oom");
  EXPECT_TRUE(fault.before_step(step_of(1), *device));
  fault.fire();
  EXPECT_THROW(fault.before_step(step_of(2), *device), OutOfMemory);
  EXPECT_TRUE(fault.before_step(step_of(3), *device));
}

TEST(FaultHook, FiresInEachStepWithItsToken) {
  const auto device = small_device();
  FaultHook fault = hook("kind=oom,token=7");
  EXPECT_TRUE(fault.before_step(step_of(1, {1, 2, 77}), *device));
  EXPECT_THROW(fault.before_step(step_of(2, {1, 7, 2}), *device), OutOfMemory);
  EXPECT_TRUE(fault.before_step(step_of(3, {1}), *device));
  EXPECT_THROW(fault.before_step(step_of(4, {7}), *device), OutOfMemory);
}

TEST(FaultHook, LeavesLittleMemoryForCapture) {
  const auto device = small_device();
  const FaultHook fault = hook("kind=oom-capture,free_mib=2");
  const auto held = fault.before_capture(*device);
  EXPECT_GE(device->memory().free, size_t{2} << 20);
  EXPECT_LE(device->memory().free, (size_t{2} << 20) + 8192);
  EXPECT_TRUE(hook("kind=spin").before_capture(*device).empty());
}

}  // namespace
}  // namespace refrain::worker
