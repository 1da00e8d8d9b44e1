#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/unit/device/test_launches.h"
#include "worker/device/host/thread_team.h"

namespace refrain::worker {
namespace {

struct CountArgs {
  std::atomic<int>* calls;
  std::atomic<uint64_t>* ranks;
};

void count_kernel(const CountArgs& args, const kernels::Team& team) {
  args.calls->fetch_add(1);
  args.ranks->fetch_or(uint64_t{1} << team.rank);
}

TEST(HostTeam, EveryThreadRunsEveryLaunchOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    auto device = host_device(threads);
    auto stream = device->create_stream();
    std::atomic<int> calls{0};
    std::atomic<uint64_t> ranks{0};
    for (int i = 0; i < 100; ++i) {
      kernels::launch<count_kernel>(stream->ref(), CountArgs{&calls, &ranks}, "count");
    }
    EXPECT_EQ(calls.load(), 100 * threads);
    EXPECT_EQ(ranks.load(), (uint64_t{1} << threads) - 1);
  }
}

TEST(HostTeam, SingleLaunchesRunOnTheFirstThreadOnly) {
  auto device = host_device(3);
  auto stream = device->create_stream();
  std::atomic<int> calls{0};
  std::atomic<uint64_t> ranks{0};
  kernels::launch<count_kernel>(stream->ref(), CountArgs{&calls, &ranks}, "count", true);
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(ranks.load(), 1u);
}

TEST(HostTeam, EveryLaunchIsCounted_R7) {
  for (const int threads : {1, 3}) {
    auto device = host_device(threads);
    auto stream = device->create_stream();
    const auto counter = device->launch_counter();
    ASSERT_NE(counter, nullptr);
    std::atomic<int> calls{0};
    std::atomic<uint64_t> ranks{0};
    const CountArgs args{&calls, &ranks};
    kernels::launch<count_kernel>(stream->ref(), args, "count");
    kernels::launch<count_kernel>(stream->ref(), args, "count", true);
    EXPECT_EQ(counter->done, 2u);
    stream->begin_capture();
    for (int i = 0; i < 5; ++i)
      kernels::launch<count_kernel>(stream->ref(), args, "count", i % 2 == 0);
    const auto graph = stream->end_capture();
    EXPECT_EQ(counter->done, 2u) << "recorded, not run";
    stream->launch(*graph);
    stream->launch(*graph);
    EXPECT_EQ(counter->done, 12u);
    stream.reset();
    device.reset();
    EXPECT_EQ(counter->done, 12u) << "it outlives its device";
  }
}

// What stands in a launch shows: the counter stops before it.
TEST(HostTeam, TheCounterStandsAtALaunchThatHangs_R7) {
  struct HoldArgs {
    std::atomic<bool>* holding;
    std::atomic<bool>* go_on;
  };
  constexpr auto hold = [](const HoldArgs& args, const kernels::Team&) {
    args.holding->store(true);
    while (!args.go_on->load()) std::this_thread::yield();
  };
  auto device = host_device(1);
  const auto counter = device->launch_counter();
  std::atomic<bool> holding{false}, go_on{false};
  std::thread other([&] {
    auto stream = device->create_stream();
    launch_scale(*stream, {});
    launch_scale(*stream, {});
    kernels::launch<hold>(stream->ref(), HoldArgs{&holding, &go_on}, "hold");
  });
  while (!holding) std::this_thread::yield();
  EXPECT_EQ(counter->done, 2u);
  go_on = true;
  other.join();
  EXPECT_EQ(counter->done, 3u);
}

#if !defined(REFRAIN_ASAN) && !defined(REFRAIN_TSAN)  // they map memory themselves
TEST(HostTeam, WithoutMemoryForScratchItSaysWhatIsMissing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlim_t pages = 0;
  ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
  constexpr rlim_t kMore = rlim_t{16} << 20;
  const rlimit tight{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMore, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  EXPECT_THROW(ThreadTeam(64), OutOfMemory);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}
#endif

struct StepArgs {
  std::atomic<int>* inside;  // threads that have run this node
  std::atomic<int>* before;  // of the node before
  std::atomic<int>* late;    // threads found late
};

void step_kernel(const StepArgs& args, const kernels::Team& team) {
  if (args.before != nullptr && args.before->load() != team.size) args.late->fetch_add(1);
  args.inside->fetch_add(1);
}

TEST(HostTeam, NoThreadStartsANodeBeforeAllHaveFinishedTheOneBefore) {
  constexpr int kNodes = 200;
  for (const int threads : {2, 4}) {
    auto device = host_device(threads);
    auto stream = device->create_stream();
    std::vector<std::atomic<int>> inside(kNodes);
    std::atomic<int> late{0};
    stream->begin_capture();
    for (size_t i = 0; i < kNodes; ++i) {
      const StepArgs args{&inside[i], i == 0 ? nullptr : &inside[i - 1], &late};
      kernels::launch<step_kernel>(stream->ref(), args, "step");
    }
    auto graph = stream->end_capture();
    for (int round = 0; round < 10; ++round) {
      for (auto& count : inside) count = 0;
      stream->launch(*graph);
      EXPECT_EQ(inside[kNodes - 1].load(), threads);
    }
    EXPECT_EQ(late.load(), 0);
  }
}

struct SumArgs {
  float* values;
  int64_t count;
};

// values[0] = sum of all; only rank 0 has work.
void sum_kernel(const SumArgs& args, const kernels::Team&) {
  args.values[0] = std::accumulate(args.values, args.values + args.count, 0.0f);
}

TEST(HostTeam, SingleNodesAmongSharedOnesKeepTheirOrder) {
  auto device = host_device(3);
  auto stream = device->create_stream();
  std::vector<float> values(3000, 1.0f);
  const ScaleArgs zero{values.data(), values.data(), 3000, 0.0f, 1.0f};
  stream->begin_capture();
  for (int i = 0; i < 200; ++i) {
    launch_scale(*stream, zero);
    kernels::launch<sum_kernel>(stream->ref(), SumArgs{values.data(), 3000}, "sum", true);
    kernels::launch<sum_kernel>(stream->ref(), SumArgs{values.data(), 3000}, "sum", true);
  }
  auto graph = stream->end_capture();
  stream->launch(*graph);
  EXPECT_EQ(values[0], 3000.0f + 2999.0f);  // 3000 ones, then the sum of that and 2999 ones
  EXPECT_EQ(values[2999], 1.0f);
}

struct FailArgs {
  int rank;
};

void fail_kernel(const FailArgs& args, const kernels::Team& team) {
  if (team.rank == args.rank) throw std::runtime_error("rank " + std::to_string(args.rank));
}

TEST(HostTeam, AnExceptionOfAnyThreadReachesTheCallerAndTheTeamGoesOn) {
  auto device = host_device(3);
  auto stream = device->create_stream();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THROW(kernels::launch<fail_kernel>(stream->ref(), FailArgs{rank}, "fail"),
                 std::runtime_error);
  }
  std::vector<float> values(1000, 2.0f);
  launch_scale(*stream, {values.data(), values.data(), 1000, 3.0f, 0.0f});
  EXPECT_EQ(values[999], 6.0f);
}

TEST(HostTeam, NodesAfterAFailureDoNotRun) {
  auto device = host_device(2);
  auto stream = device->create_stream();
  std::vector<float> values(1000, 2.0f);
  stream->begin_capture();
  kernels::launch<fail_kernel>(stream->ref(), FailArgs{1}, "fail");
  launch_scale(*stream, {values.data(), values.data(), 1000, 3.0f, 0.0f});
  auto graph = stream->end_capture();
  EXPECT_THROW(stream->launch(*graph), std::runtime_error);
  EXPECT_EQ(values, std::vector<float>(1000, 2.0f));
}

struct ScratchArgs {
  std::byte** seen;
};

void scratch_kernel(const ScratchArgs& args, const kernels::Team& team) {
  std::fill_n(team.scratch, team.scratch_bytes, static_cast<std::byte>(team.rank));
  args.seen[team.rank] = team.scratch;
}

TEST(HostTeam, EveryThreadHasItsOwnScratchOfTheFullSize) {
  auto device = host_device(3);
  auto stream = device->create_stream();
  std::vector<std::byte*> seen(3);
  kernels::launch<scratch_kernel>(stream->ref(), ScratchArgs{seen.data()}, "scratch");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(seen[rank]) % 64, 0u);
    EXPECT_EQ(seen[rank][0], static_cast<std::byte>(rank));
    EXPECT_EQ(seen[rank][kernels::kTeamScratchBytes - 1], static_cast<std::byte>(rank));
  }
}

}  // namespace
}  // namespace refrain::worker
