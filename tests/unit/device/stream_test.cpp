// The host stream under CUDA's capture rules (design.md idea 4), and its graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/base/log.h"
#include "tests/unit/comm/ranks.h"
#include "tests/unit/device/test_launches.h"
#include "worker/comm/communicator.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

class HostStreamTest : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Device> device_ = host_device(GetParam());
  std::unique_ptr<Stream> stream_ = device_->create_stream();
};
INSTANTIATE_TEST_SUITE_P(Threads, HostStreamTest, testing::Values(1, 2));

TEST_P(HostStreamTest, LaunchesRunInOrder) {
  std::vector<float> values(100, 1.0f);
  launch_scale(*stream_, {values.data(), values.data(), 100, 2.0f, 0.0f});
  launch_scale(*stream_, {values.data(), values.data(), 100, 1.0f, 5.0f});
  stream_->synchronize();
  EXPECT_EQ(values, std::vector<float>(100, 7.0f));
  EXPECT_TRUE(stream_->record()->query());
}

TEST_P(HostStreamTest, CapturedLaunchesRunOnReplayOnly) {
  std::vector<float> values(100, 1.0f);
  stream_->begin_capture();
  EXPECT_TRUE(stream_->capturing());
  {
    ScaleArgs args{values.data(), values.data(), 100, 2.0f, 1.0f};
    launch_scale(*stream_, args);
    args.factor = 99.0f;  // the launch has its own copy
  }
  auto graph = stream_->end_capture();
  EXPECT_FALSE(stream_->capturing());
  EXPECT_EQ(values[0], 1.0f);
  for (int i = 0; i < 3; ++i) stream_->launch(*graph);
  EXPECT_EQ(values, std::vector<float>(100, 15.0f));
  EXPECT_EQ(graph->num_nodes(), 1);
  EXPECT_EQ(graph->node_name(0), "scale");
}

TEST_P(HostStreamTest, CopiesAreRecorded) {
  for (const size_t bytes : {size_t{0}, size_t{3}, size_t{1} << 20}) {
    std::vector<uint8_t> from(bytes, 1), to(bytes, 0);
    stream_->begin_capture();
    stream_->copy(to.data(), from.data(), bytes);
    auto graph = stream_->end_capture();
    EXPECT_EQ(to, std::vector<uint8_t>(bytes, 0));
    from.assign(bytes, 7);
    stream_->launch(*graph);
    EXPECT_EQ(to, from);
  }
}

TEST_P(HostStreamTest, RowsOfManyPiecesGoIntoTheirPlace) {
  std::vector<uint16_t> from(12), to(40, 0);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i + 1);
  const auto* in = reinterpret_cast<const std::byte*>(from.data());
  auto* out = reinterpret_cast<std::byte*>(to.data());
  const std::vector<CopyRows> pieces = {
      {out, 4, 8, in, 4, 3},               // three rows of two, of two places side by side
      {out + 24, 12, 0, in + 12, 12, 1}};  // one of six, places one behind the other
  stream_->copy_rows(pieces, 1);
  stream_->synchronize();
  const std::vector<uint16_t> expected = {0, 0, 1, 2, 0, 0, 3, 4, 0, 0,  5,  6,
                                          0, 0, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12};
  to.resize(expected.size());
  EXPECT_EQ(to, expected);
}

TEST_P(HostStreamTest, AnEmptyGraphReplays) {
  stream_->begin_capture();
  auto graph = stream_->end_capture();
  stream_->launch(*graph);
  EXPECT_EQ(graph->num_nodes(), 0);
}

TEST_P(HostStreamTest, WhatCudaRefusesInACaptureIsNamedAndDropsIt) {
  stream_->begin_capture();
  auto empty = stream_->end_capture();
  auto other = device_->create_stream();
  const std::vector<std::pair<std::string, std::function<void()>>> refused = {
      {"allocate ", [&] { device_->allocate(64, MemoryTag::kOther); }},
      {"allocate_pinned ", [&] { device_->allocate_pinned(64); }},
      {"synchronize ", [&] { stream_->synchronize(); }},
      {"synchronize ", [&] { other->synchronize(); }},
      {"record ", [&] { stream_->record(); }},
      {"launch(graph) ", [&] { stream_->launch(*empty); }},
      {"begin_capture ", [&] { other->begin_capture(); }},
      {"create_communicator ",
       [&] {
         (void)device_->create_communicator({fresh_token(), 0, 1, 10});
       }},
  };
  for (const auto& [name, call] : refused) {
    stream_->begin_capture();
    try {
      call();
      ADD_FAILURE() << name << "was allowed while capturing";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
    EXPECT_FALSE(stream_->capturing()) << name;
    EXPECT_THROW(stream_->end_capture(), DeviceError) << name;
  }
}

TEST_P(HostStreamTest, TheBarrierOfACommunicatorIsRefusedInACapture) {
  auto communicator = device_->create_communicator({fresh_token(), 0, 1, 10});
  ASSERT_TRUE(communicator.has_value());
  stream_->begin_capture();
  EXPECT_THROW((*communicator)->barrier(), DeviceError);
  EXPECT_FALSE(stream_->capturing());
}

TEST_P(HostStreamTest, ADestroyedStreamEndsItsCapture) {
  stream_->begin_capture();
  stream_.reset();
  EXPECT_NO_THROW(device_->allocate(64, MemoryTag::kOther));
}

TEST_P(HostStreamTest, DigestsDependOnNamesAndOrderNotOnAddresses) {
  std::vector<float> a(10), b(10);
  const auto capture = [&](std::vector<float>& values, std::vector<const char*> names) {
    stream_->begin_capture();
    for (const char* name : names) {
      launch_scale(*stream_, {values.data(), values.data(), 10, 1.0f, 0.0f}, name);
    }
    return stream_->end_capture()->digest();
  };
  const uint64_t digest = capture(a, {"first", "second"});
  EXPECT_EQ(capture(b, {"first", "second"}), digest);
  EXPECT_NE(capture(a, {"second", "first"}), digest);
  EXPECT_NE(capture(a, {"first"}), digest);
  EXPECT_NE(capture(a, {"firsts", "econd"}), digest);
}

TEST(HostGraph, DestroyingACommunicatorBeforeItsGraphsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        init_logging("test");
        auto device = host_device(1);
        auto stream = device->create_stream();
        auto communicator = device->create_communicator({fresh_token(), 0, 1, 10});
        std::vector<float> values(8);
        stream->begin_capture();
        (*communicator)->all_reduce(*stream, {values.data(), DType::kFloat32, 8}, 8, {1, nullptr});
        auto graph = stream->end_capture();
        communicator->reset();
      },
      "destroyed before 1 graphs");
}

TEST(HostGraph, GraphsThatGoFirstLetTheCommunicatorGo) {
  auto device = host_device(1);
  auto stream = device->create_stream();
  auto communicator = device->create_communicator({fresh_token(), 0, 1, 10});
  std::vector<float> values(8);
  stream->begin_capture();
  (*communicator)->all_reduce(*stream, {values.data(), DType::kFloat32, 8}, 8, {1, nullptr});
  auto graph = stream->end_capture();
  graph.reset();
  communicator->reset();
  EXPECT_EQ(device->memory().by_tag[static_cast<int>(MemoryTag::kGraphs)], 0u);
}

}  // namespace
}  // namespace refrain::worker
