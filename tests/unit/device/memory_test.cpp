#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/host/isa.h"
#include "tests/unit/device/test_launches.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

size_t of(const MemoryAccount& account, MemoryTag tag) {
  return account.by_tag[static_cast<int>(tag)];
}

TEST(HostMemory, BuffersAreAlignedWritableAndCountedByTag) {
  auto device = host_device(1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{5} << 20}) {
    auto buffer = device->allocate(bytes, MemoryTag::kKvCache);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
    EXPECT_EQ(buffer->bytes(), bytes);
    std::memset(buffer->data(), 1, bytes);
    EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), bytes);
    EXPECT_EQ(of(device->memory(), MemoryTag::kWeights), 0u);
  }
  EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), 0u);
}

TEST(HostMemory, TheLimitGivesOutOfMemoryWithTheMissingBytes) {
  constexpr size_t kLimit = size_t{8} << 20;
  auto device = host_device(1, kLimit);
  auto held = device->allocate(6 << 20, MemoryTag::kWeights);
  EXPECT_EQ(device->memory().total, kLimit);
  EXPECT_EQ(device->memory().free, size_t{2} << 20);
  try {
    device->allocate(5 << 20, MemoryTag::kArena);
    FAIL() << "allocated beyond the limit";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.missing, size_t{3} << 20);
    EXPECT_THAT(error.what(), HasSubstr("arena"));
  }
  EXPECT_EQ(of(device->memory(), MemoryTag::kArena), 0u);
  held.reset();
  EXPECT_NO_THROW(device->allocate(8 << 20, MemoryTag::kArena));
}

TEST(HostMemory, ReservedAddressesAreCountedWhenTheyAreBacked) {
  constexpr size_t kMiB = size_t{1} << 20;
  auto device = host_device(1, 8 * kMiB);
  auto cache = device->reserve(64 * kMiB, MemoryTag::kKvCache);
  auto* data = static_cast<std::byte*>(cache->data());
  EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), 0u);
  cache->back(3 * kMiB);
  std::memset(data, 1, 3 * kMiB);
  EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), 3 * kMiB);
  try {
    cache->back(20 * kMiB);
    FAIL() << "backed beyond the limit";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.missing, 12 * kMiB);
  }
  EXPECT_EQ(cache->backed(), 3 * kMiB);
  cache->back(8 * kMiB);
  std::memset(data, 2, 8 * kMiB);
  cache->trim(3 * kMiB);
  EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), 3 * kMiB);
  EXPECT_EQ(data[3 * kMiB - 1], std::byte{2});
  EXPECT_DEATH(data[4 * kMiB] = std::byte{1}, "");
  cache.reset();
  EXPECT_EQ(of(device->memory(), MemoryTag::kKvCache), 0u);
}

TEST(HostMemory, AGraphThatDoesNotFitIsOutOfMemory) {  // CG-25
  auto device = host_device(1, 1000);
  auto stream = device->create_stream();
  float value = 0;
  stream->begin_capture();
  for (int i = 0; i < 100; ++i) launch_scale(*stream, {&value, &value, 1, 1.0f, 1.0f});
  EXPECT_THROW(stream->end_capture(), OutOfMemory);
  EXPECT_FALSE(stream->capturing());
  EXPECT_EQ(of(device->memory(), MemoryTag::kGraphs), 0u);
  stream->begin_capture();
  launch_scale(*stream, {&value, &value, 1, 1.0f, 1.0f});
  auto graph = stream->end_capture();
  EXPECT_EQ(of(device->memory(), MemoryTag::kGraphs), graph->bytes());
}

TEST(HostMemory, WithoutALimitTheMachineIsTheLimit) {
  auto device = host_device(1);
  const MemoryAccount account = device->memory();
  EXPECT_GT(account.total, size_t{64} << 20);
  EXPECT_LE(account.free, account.total);
  EXPECT_THROW(device->allocate(account.total * 2, MemoryTag::kOther), OutOfMemory);
}

// Element (row, k) of a packed bfloat16 weight.
uint16_t packed(const std::vector<uint16_t>& tiles, int64_t k_count, int64_t row, int64_t k) {
  return tiles[static_cast<size_t>(((row / 16) * (k_count / 2) + k / 2) * 32 + row % 16 * 2 +
                                   k % 2)];
}

TEST(HostDevice, UploadsWeightsInPartsIntoTilesAndPadsTheLast) {
  for (const int threads : {1, 3}) {
    constexpr int64_t kRows = 70, kCols = 6;
    auto device = host_device(threads);
    auto stream = device->create_stream();
    std::vector<uint16_t> source(kRows * kCols);
    for (size_t i = 0; i < source.size(); ++i) source[i] = to_bfloat16(float(i % 251)).bits;
    const size_t bytes = device->weight_bytes(DType::kBFloat16, kRows, kCols);
    ASSERT_EQ(bytes, size_t{80} * kCols * 2);
    std::vector<uint16_t> tiles(bytes / 2, 0xffff);
    kernels::Weight weight;
    weight.layout = device->weight_layout(DType::kBFloat16);
    weight.n = kRows;
    weight.k = kCols;
    device->upload_weight(*stream, weight, tiles.data(), 0, 48, source.data());
    device->upload_weight(*stream, weight, tiles.data(), 48, 22, source.data() + 48 * kCols);
    stream->synchronize();
    for (int64_t row = 0; row < 80; ++row) {
      for (int64_t k = 0; k < kCols; ++k) {
        const uint16_t expected = row < kRows ? source[static_cast<size_t>(row * kCols + k)] : 0;
        ASSERT_EQ(packed(tiles, kCols, row, k), expected) << row << " " << k;
      }
    }
  }
}

TEST(HostDevice, BadOptionsAreNamed) {
  EXPECT_EQ(create_device("host", {0, "", 0}).error().field, "host-threads");
  EXPECT_THAT(create_device("host", {1, "mmx", 0}).error().message, HasSubstr("avx512_bf16"));
  EXPECT_EQ(create_device("tpu", {}).error().field, "device");
}

TEST(HostDevice, NamesItsInstructionSetAndThreads) {
  auto device = create_device("auto", {2, "scalar", 0});
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ((*device)->name(), "host (scalar, 2 threads)");
  EXPECT_EQ((*device)->warmup_runs(), 0);
  EXPECT_NE((*device)->kernels().embed, nullptr);
}

}  // namespace
}  // namespace refrain::worker
