// CG-38: streams of two shares of the host device run at the same time, each on threads of its own,
// behind the caller's back and in order.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/unit/device/test_launches.h"

namespace refrain::worker {
namespace {

struct MeetArgs {
  std::atomic<int>* come;
  std::atomic<uint64_t>* ranks;
};

// Ends only when the other stream's has begun.
void meet_kernel(const MeetArgs& args, const kernels::Team& team) {
  args.ranks->fetch_or(uint64_t{1} << team.rank);
  if (team.rank == 0) args.come->fetch_add(1);
  while (args.come->load() < 2) std::this_thread::yield();
}

TEST(HostShares, CG38StreamsOfTwoSharesRunAtTheSameTime) {
  for (const bool recorded : {false, true}) {
    auto device = host_device(3);
    std::atomic<int> come{0};
    std::atomic<uint64_t> ranks[2] = {0, 0};
    std::unique_ptr<Graph> graphs[2];
    std::unique_ptr<Stream> streams[2];
    for (int i = 0; i < 2; ++i) {
      streams[i] = device->create_stream({i, 2});
      if (recorded) streams[i]->begin_capture();
      kernels::launch<meet_kernel>(streams[i]->ref(), MeetArgs{&come, &ranks[i]}, "meet");
      if (recorded) graphs[i] = streams[i]->end_capture();
    }
    EXPECT_TRUE(!recorded || come.load() == 0);
    for (int i = 0; recorded && i < 2; ++i) streams[i]->launch(*graphs[i]);
    for (const auto& stream : streams) stream->synchronize();
    EXPECT_EQ(come.load(), 2);
    EXPECT_EQ(ranks[0].load(), 0b01u) << "one of three threads";
    EXPECT_EQ(ranks[1].load(), 0b11u) << "the two others";
  }
}

struct HoldArgs {
  std::atomic<bool>* go_on;
};
void hold_kernel(const HoldArgs& args, const kernels::Team&) {
  while (!args.go_on->load()) std::this_thread::yield();
}
struct AppendArgs {
  std::vector<int>* to;
  int value;
};
void append_kernel(const AppendArgs& args, const kernels::Team&) { args.to->push_back(args.value); }

TEST(HostShares, EventsHappenWhenTheWorkBeforeThemHasRun) {
  auto device = host_device(2);
  auto stream = device->create_stream({1, 2});
  std::atomic<bool> go_on{false};
  std::vector<int> order;
  const auto first = stream->record_time();
  kernels::launch<hold_kernel>(stream->ref(), HoldArgs{&go_on}, "hold");
  kernels::launch<append_kernel>(stream->ref(), AppendArgs{&order, 1}, "append");
  const auto second = stream->record_time();
  kernels::launch<append_kernel>(stream->ref(), AppendArgs{&order, 2}, "append");
  EXPECT_TRUE(first->wait({}));
  EXPECT_FALSE(second->query());
  int asked = 0;
  EXPECT_FALSE(second->wait([&] { return ++asked == 3; }));
  go_on = true;
  EXPECT_TRUE(second->wait([] { return false; }));
  EXPECT_TRUE(second->query());
  EXPECT_GE(second->seconds_since(*first), 0.0);
  stream->synchronize();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(HostShares, WhatALaunchThrowsEndsTheStream) {
  struct ThrowArgs {
    int unused;
  };
  constexpr auto throws = [](const ThrowArgs&, const kernels::Team&) {
    throw DeviceError("a rank is gone");
  };
  auto device = host_device(2);
  auto stream = device->create_stream({0, 2});
  std::vector<int> order;
  kernels::launch<throws>(stream->ref(), ThrowArgs{0}, "throws");
  kernels::launch<append_kernel>(stream->ref(), AppendArgs{&order, 1}, "append");
  const auto event = stream->record();
  EXPECT_THROW(event->wait({}), DeviceError);
  EXPECT_THROW(stream->synchronize(), DeviceError);
  stream.reset();
  EXPECT_TRUE(order.empty()) << "nothing runs behind it";
}

}  // namespace
}  // namespace refrain::worker
