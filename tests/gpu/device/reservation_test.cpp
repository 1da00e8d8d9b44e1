// Addresses reserved before a capture and backed after it (the KV cache), and errors that stick.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/gpu/device/cuda_device_fixture.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

size_t cache_bytes(const Device& device) {
  return device.memory().by_tag[static_cast<int>(MemoryTag::kKvCache)];
}

// out = a + a over `count` floats.
void launch_double(Device& device, Stream& stream, void* a, void* out, int64_t count) {
  kernels::AddArgs args;
  args.a = args.b = {a, DType::kFloat32, count};
  args.out = {out, DType::kFloat32, count};
  args.cols = static_cast<int32_t>(count);
  args.rows = {1, nullptr};
  device.kernels().add(stream.ref(), args);
}

class Reserved : public CudaDeviceFixture {
 protected:
  void copy_in(void* to, float value, size_t count) {
    const auto pinned = device_->allocate_pinned(count * sizeof(float));
    std::fill_n(static_cast<float*>(pinned->data()), count, value);
    stream_->copy(to, pinned->data(), count * sizeof(float));
    stream_->synchronize();
  }
  float first_at(const void* from) {
    const auto pinned = device_->allocate_pinned(sizeof(float));
    stream_->copy(pinned->data(), from, sizeof(float));
    stream_->synchronize();
    return *static_cast<const float*>(pinned->data());
  }
};

TEST_F(Reserved, GraphRecordedOverAddressesWithoutMemoryRunsOnceTheyHaveSome) {
  constexpr int64_t kCount = 1000;
  const auto cache = device_->reserve(300 * kMiB, MemoryTag::kKvCache);
  EXPECT_EQ(cache->backed(), 0u);
  EXPECT_EQ(cache_bytes(*device_), 0u);
  auto* far = static_cast<std::byte*>(cache->data()) + 200 * kMiB;
  const auto warm = device_->allocate(2 * kCount * sizeof(float), MemoryTag::kOther);
  launch_double(*device_, *stream_, warm->data(), warm->data(), kCount);
  stream_->begin_capture();
  launch_double(*device_, *stream_, far, far + kMiB, kCount);
  const auto graph = stream_->end_capture();
  const size_t free_before = device_->memory().free;
  cache->back(300 * kMiB);
  EXPECT_EQ(cache->backed(), 300 * kMiB);
  EXPECT_EQ(cache_bytes(*device_), 300 * kMiB);
  EXPECT_LE(device_->memory().free + 290 * kMiB, free_before);
  copy_in(far, 3.0f, kCount);
  stream_->launch(*graph);
  EXPECT_EQ(first_at(far + kMiB), 6.0f);
}

TEST_F(Reserved, BackingTooMuchTakesNothingAndSaysWhatIsMissing_CG25) {
  const size_t free = device_->memory().free;
  const auto cache = device_->reserve(free + 1024 * kMiB, MemoryTag::kKvCache);
  cache->back(10 * kMiB);
  const size_t before = device_->memory().free;
  try {
    cache->back(cache->bytes());
    FAIL() << "there was room";
  } catch (const OutOfMemory& error) {
    EXPECT_GE(error.missing, 512 * kMiB);
    EXPECT_THAT(error.what(), HasSubstr("kv_cache"));
  }
  EXPECT_EQ(cache->backed(), 10 * kMiB);
  EXPECT_GE(device_->memory().free + 4 * kMiB, before);
  copy_in(cache->data(), 2.0f, 100);
  EXPECT_EQ(first_at(cache->data()), 2.0f);
}

TEST_F(Reserved, TrimGivesTheMemoryBackAndItCanBeHadAgain) {
  const auto cache = device_->reserve(512 * kMiB, MemoryTag::kKvCache);
  cache->back(2 * kMiB);
  copy_in(cache->data(), 5.0f, 100);
  const size_t before = device_->memory().free;
  cache->back(512 * kMiB);
  cache->trim(2 * kMiB);
  EXPECT_EQ(cache->backed(), 2 * kMiB);
  EXPECT_EQ(cache_bytes(*device_), 2 * kMiB);
  EXPECT_GE(device_->memory().free + 4 * kMiB, before);
  EXPECT_EQ(first_at(cache->data()), 5.0f);
  cache->back(512 * kMiB);
  auto* last = static_cast<std::byte*>(cache->data()) + 511 * kMiB;
  copy_in(last, 7.0f, 100);
  EXPECT_EQ(first_at(last), 7.0f);
}

// In a process of its own, which the error spoils.
void run_a_broken_kernel() {
  auto device = create_device("cuda", {});
  if (!device) std::_Exit(3);
  const auto stream = (*device)->create_stream();
  const auto good = (*device)->allocate(4096, MemoryTag::kOther);
  auto* nowhere = reinterpret_cast<void*>(uintptr_t{0x1000});
  launch_double(**device, *stream, nowhere, good->data(), 64);
  try {
    stream->synchronize();
    std::_Exit(4);
  } catch (const DeviceError& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  try {
    (*device)->allocate(4096, MemoryTag::kOther);
    std::_Exit(5);
  } catch (const DeviceError&) {
    std::_Exit(7);
  }
}

TEST(CudaErrors, OneThatSticksNamesTheLastKernelAndIsNotSurvived) {
  if (count_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_a_broken_kernel(), testing::ExitedWithCode(7),
              "illegal memory access.*last kernel: add");
}

}  // namespace
}  // namespace refrain::worker
