// The CUDA device under the rules of the device seam: memory and its account, streams, captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "tests/gpu/device/cuda_device_fixture.h"
#include "worker/comm/communicator.h"

namespace refrain::worker {
namespace {

using testing::HasSubstr;

class CudaDeviceTest : public CudaDeviceFixture {
 protected:
  // data[i] = start, on the device.
  std::unique_ptr<Buffer> filled(int64_t count, float start) {
    auto buffer = device_->allocate(static_cast<size_t>(count) * sizeof(float), MemoryTag::kOther);
    kernels::HashedRows rows;
    rows.to = buffer->data();
    rows.dtype = DType::kFloat32;
    rows.rows = 1;
    rows.cols = count;
    rows.offset = start;
    EXPECT_TRUE(device_->fill_hashed(*stream_, rows));
    return buffer;
  }

  std::vector<float> read(const Buffer& buffer) {
    auto pinned = device_->allocate_pinned(buffer.bytes());
    std::memset(pinned->data(), 0xff, pinned->bytes());
    stream_->copy(pinned->data(), buffer.data(), buffer.bytes());
    stream_->synchronize();
    const auto* values = static_cast<const float*>(pinned->data());
    return {values, values + buffer.bytes() / sizeof(float)};
  }

  // b = a + b
  void launch_add(const Buffer& a, const Buffer& b, int64_t count) {
    kernels::AddArgs args;
    args.a = {a.data(), DType::kFloat32, count};
    args.b = {b.data(), DType::kFloat32, count};
    args.out = {b.data(), DType::kFloat32, count};
    args.cols = static_cast<int32_t>(count);
    args.rows = {1, nullptr};
    device_->kernels().add(stream_->ref(), args);
  }
};

TEST_F(CudaDeviceTest, NamesItselfAndOffersEveryKernel) {
  EXPECT_TRUE(device_->name().starts_with("NVIDIA")) << device_->name();
  EXPECT_GE(device_->warmup_runs(), 1);  // CG-21
  EXPECT_FALSE(device_->runs_at_once());
  const kernels::KernelTable& table = device_->kernels();
  EXPECT_NE(table.prepare_inputs, nullptr);
  EXPECT_NE(table.embed, nullptr);
  EXPECT_NE(table.rms_norm, nullptr);
  EXPECT_NE(table.add_rms_norm, nullptr);
  EXPECT_NE(table.add, nullptr);
  EXPECT_NE(table.linear, nullptr);
  EXPECT_NE(table.silu_mul, nullptr);
  EXPECT_NE(table.rope_kv_write, nullptr);
  EXPECT_NE(table.attention, nullptr);
  EXPECT_NE(table.select_rows, nullptr);
  EXPECT_NE(table.sample, nullptr);
  EXPECT_NE(table.kv_rows, nullptr);
  EXPECT_NE(table.row_distances, nullptr);
}

TEST_F(CudaDeviceTest, MemoryIsCountedByTag) {
  constexpr size_t kBytes = size_t{256} << 20;
  const MemoryAccount before = device_->memory();
  const int tag = static_cast<int>(MemoryTag::kKvCache);
  {
    auto buffer = device_->allocate(kBytes, MemoryTag::kKvCache);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
    const MemoryAccount during = device_->memory();
    EXPECT_EQ(during.by_tag[tag], before.by_tag[tag] + kBytes);
    EXPECT_LE(during.free + kBytes, before.free + (size_t{2} << 20));
    EXPECT_EQ(during.total, before.total);
  }
  EXPECT_EQ(device_->memory().by_tag[tag], before.by_tag[tag]);
}

TEST_F(CudaDeviceTest, CG25OutOfMemorySaysWhatIsMissingAndHarmsNothing) {
  const MemoryAccount account = device_->memory();
  try {
    device_->allocate(account.free + (size_t{1} << 30), MemoryTag::kArena);
    FAIL() << "there was room";
  } catch (const OutOfMemory& error) {
    EXPECT_GE(error.missing, size_t{1} << 29);
    EXPECT_THAT(error.what(), HasSubstr("arena"));
  }
  EXPECT_EQ(read(*filled(100, 3.0f)), std::vector<float>(100, 3.0f));
}

TEST_F(CudaDeviceTest, CapturedLaunchesRunOnReplayOnly) {
  constexpr int64_t kCount = 1000;
  auto one = filled(kCount, 1.0f), sum = filled(kCount, 5.0f);
  launch_add(*one, *sum, kCount);  // warm up: 6
  stream_->synchronize();
  stream_->begin_capture();
  EXPECT_TRUE(stream_->capturing());
  launch_add(*one, *sum, kCount);
  launch_add(*one, *sum, kCount);
  auto graph = stream_->end_capture();
  EXPECT_FALSE(stream_->capturing());
  EXPECT_EQ(read(*sum), std::vector<float>(kCount, 6.0f));
  for (int i = 0; i < 3; ++i) stream_->launch(*graph);
  auto event = stream_->record();
  event->synchronize();
  EXPECT_TRUE(event->query());
  EXPECT_EQ(read(*sum), std::vector<float>(kCount, 12.0f));
  EXPECT_EQ(graph->num_nodes(), 2);
  EXPECT_THAT(std::string(graph->node_name(0)), testing::Not(testing::IsEmpty()));
}

TEST_F(CudaDeviceTest, CG22DigestsFollowTheCollectives) {
  auto communicator = device_->create_communicator({"alone", 0, 1, 1000});
  ASSERT_TRUE(communicator.has_value());
  auto a = filled(1000, 1.0f), b = filled(1000, 1.0f);
  const auto capture = [&](int64_t cols, int sums) {
    stream_->begin_capture();
    launch_add(*a, *b, cols);
    for (int i = 0; i < sums; ++i) {
      (*communicator)->all_reduce(*stream_, {a->data(), DType::kFloat32, cols}, cols, {1, nullptr});
    }
    return stream_->end_capture()->digest();
  };
  launch_add(*a, *b, 1000);
  stream_->synchronize();
  const uint64_t first = capture(1000, 2);
  EXPECT_EQ(capture(1000, 2), first);
  EXPECT_NE(capture(1000, 3), first);
  EXPECT_NE(capture(64, 2), first);
}

// Functions, launch shapes, parameters of at most four bytes, sizes of copies and the order: each
// gives other launches, an address does not.
TEST_F(CudaDeviceTest, CG22LaunchDigestsFollowFunctionsShapesAndParameters) {
  constexpr int64_t kCount = 4096;
  auto a = filled(kCount, 1.0f), b = filled(kCount, 1.0f), c = filled(kCount, 1.0f);
  const auto norm = [&](int32_t cols, int32_t rows) {
    kernels::RmsNormArgs args;
    args.in = {a->data(), DType::kFloat32, cols};
    args.out = {b->data(), DType::kFloat32, cols};
    args.weight = static_cast<const float*>(c->data());
    args.cols = cols;
    args.rows = {rows, nullptr};
    device_->kernels().rms_norm(stream_->ref(), args);
  };
  const auto distances = [&](Buffer& of, int64_t offset) {  // its second parameter is a bool
    kernels::RowDistancesArgs args;
    args.got = {static_cast<float*>(of.data()) + offset, DType::kFloat32, 64};
    args.expected = {of.data(), DType::kFloat32, 64};
    args.out = static_cast<kernels::RowDistance*>(c->data());
    args.cols = 32;
    args.rows = {4, nullptr};
    device_->kernels().row_distances(stream_->ref(), args);
  };
  const auto digest = [&](const std::function<void()>& record) {
    record();  // warm up
    stream_->synchronize();
    stream_->begin_capture();
    record();
    return stream_->end_capture()->launch_digest();
  };
  const std::vector<uint64_t> digests = {
      digest([&] { launch_add(*a, *b, 64); }),
      digest([&] { norm(64, 1); }),
      digest([&] { norm(64, 8); }),
      digest([&] { distances(*a, 0); }),
      digest([&] { distances(*a, 1); }),
      digest([&] { stream_->copy(b->data(), a->data(), 64); }),
      digest([&] { stream_->copy(b->data(), a->data(), 128); }),
      digest([&] { launch_add(*a, *b, 64), norm(64, 1); }),
      digest([&] { norm(64, 1), launch_add(*a, *b, 64); }),
      digest([] {}),
  };
  for (size_t i = 0; i < digests.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(digests[i], digests[j]) << i << " and " << j;
  }
  EXPECT_EQ(digest([&] { launch_add(*c, *a, 64); }), digests[0]) << "at other addresses";
  EXPECT_EQ(digest([&] { distances(*b, 0); }), digests[3]);
  EXPECT_EQ(digest([&] { norm(64, 8); }), digests[2]);
}

// Somebody takes all memory; captures end in OutOfMemory, and what was captured before still runs.
TEST_F(CudaDeviceTest, CG25GraphsThatDoNotFitThrowOutOfMemory) {
  auto one = filled(64, 1.0f), sum = filled(64, 0.0f);
  launch_add(*one, *sum, 64);
  stream_->synchronize();
  std::vector<std::unique_ptr<Buffer>> hog;
  for (size_t bytes = device_->memory().free; bytes >= (size_t{1} << 20);) {
    try {
      hog.push_back(device_->allocate(bytes, MemoryTag::kOther));
    } catch (const OutOfMemory&) {
      bytes /= 2;
    }
  }
  std::vector<std::unique_ptr<Graph>> graphs;
  bool full = false;
  while (!full && graphs.size() < 200) {
    stream_->begin_capture();
    for (int i = 0; i < 2000; ++i) launch_add(*one, *sum, 64);
    try {
      graphs.push_back(stream_->end_capture());
    } catch (const OutOfMemory& error) {
      full = true;
      EXPECT_GT(error.missing, 0u);
    }
  }
  EXPECT_TRUE(full) << graphs.size() << " graphs of 2000 nodes fitted";
  hog.clear();
  if (!graphs.empty()) {
    stream_->launch(*graphs.front());
    EXPECT_EQ(read(*sum)[0], 2001.0f);
  }
}

TEST_F(CudaDeviceTest, CG25TheMemoryLimitIsKept) {
  constexpr size_t kMiB = size_t{1} << 20;
  auto limited = create_device("cuda", {}, {0, 1, 256 * kMiB});
  ASSERT_TRUE(limited.has_value());
  auto first = (*limited)->allocate(200 * kMiB, MemoryTag::kArena);
  try {
    (*limited)->allocate(100 * kMiB, MemoryTag::kArena);
    FAIL() << "the limit was passed";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.missing, 44 * kMiB);
  }
}

TEST_F(CudaDeviceTest, WhatCudaRefusesInACaptureIsNamedAndDropsIt) {
  stream_->begin_capture();
  auto empty = stream_->end_capture();
  stream_->launch(*empty);
  auto other = device_->create_stream();
  const std::vector<std::pair<std::string, std::function<void()>>> refused = {
      {"allocate ", [&] { device_->allocate(64, MemoryTag::kOther); }},
      {"allocate_pinned ", [&] { device_->allocate_pinned(64); }},
      {"synchronize ", [&] { stream_->synchronize(); }},
      {"synchronize ", [&] { other->synchronize(); }},
      {"record ", [&] { stream_->record(); }},
      {"launch(graph) ", [&] { stream_->launch(*empty); }},
      {"begin_capture ", [&] { other->begin_capture(); }},
  };
  for (const auto& [name, call] : refused) {
    stream_->begin_capture();
    try {
      call();
      ADD_FAILURE() << name << "was not refused";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
    EXPECT_FALSE(stream_->capturing());
  }
  EXPECT_THROW(stream_->end_capture(), DeviceError);
  EXPECT_EQ(read(*filled(10, 2.0f)), std::vector<float>(10, 2.0f));
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

TEST_F(CudaDeviceTest, MadeUpNumbersHaveTheHostsBits) {
  kernels::HashedRows rows;
  rows.rows = 77;
  rows.cols = 333;
  rows.first = 5;
  rows.stride = 1000;
  rows.base = 0x123456789abcdefu;
  rows.scale = 0.0271f;
  rows.offset = 1.0f;
  auto narrow =
      device_->allocate(static_cast<size_t>(rows.rows * rows.cols) * 2, MemoryTag::kOther);
  auto wide = device_->allocate(static_cast<size_t>(rows.rows * rows.cols) * 4, MemoryTag::kOther);
  rows.to = narrow->data();
  ASSERT_TRUE(device_->fill_hashed(*stream_, rows));
  rows.to = wide->data();
  rows.dtype = DType::kFloat32;
  ASSERT_TRUE(device_->fill_hashed(*stream_, rows));
  const std::vector<float> got = read(*wide);
  auto pinned = device_->allocate_pinned(narrow->bytes());
  stream_->copy(pinned->data(), narrow->data(), narrow->bytes());
  stream_->synchronize();
  const auto* bits = static_cast<const uint16_t*>(pinned->data());
  for (int64_t i = 0; i < rows.rows; ++i) {
    for (int64_t j = 0; j < rows.cols; ++j) {
      const uint64_t hashed =
          mix(rows.base + static_cast<uint64_t>(rows.first + i * rows.stride + j));
      const float uniform = static_cast<float>(static_cast<int64_t>(hashed) >> 40) * 0x1p-23f;
      const float product = rows.scale * uniform;
      const float expected = rows.offset + product;
      const auto at = static_cast<size_t>(i * rows.cols + j);
      ASSERT_EQ(got[at], expected) << i << " " << j;
      ASSERT_EQ(bits[at], to_bfloat16(expected).bits) << i << " " << j;
    }
  }
}

TEST_F(CudaDeviceTest, WeightsAreUploadedRowMajorInPieces) {
  constexpr int64_t kRows = 70, kCols = 24;
  kernels::Weight weight;
  weight.layout = device_->weight_layout(DType::kFloat32);
  weight.dtype = DType::kFloat32;
  weight.n = kRows;
  weight.k = kCols;
  ASSERT_EQ(weight.layout, kernels::WeightLayout::kRowMajor);
  auto to =
      device_->allocate(device_->weight_bytes(DType::kFloat32, kRows, kCols), MemoryTag::kWeights);
  auto source = device_->allocate_pinned(kRows * kCols * sizeof(float));
  auto* values = static_cast<float*>(source->data());
  for (int64_t i = 0; i < kRows * kCols; ++i) values[i] = static_cast<float>(i);
  device_->upload_weight(*stream_, weight, to->data(), 0, 48, values);
  device_->upload_weight(*stream_, weight, to->data(), 48, 22, values + 48 * kCols);
  EXPECT_EQ(read(*to), std::vector<float>(values, values + kRows * kCols));
}

TEST_F(CudaDeviceTest, AGroupOfOneNeedsNoLibrary) {
  auto communicator = device_->create_communicator({"alone", 0, 1, 1000});
  ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
  auto data = filled(64, 2.0f), out = filled(64, 0.0f);
  (*communicator)->all_reduce(*stream_, {data->data(), DType::kFloat32, 32}, 32, {2, nullptr});
  (*communicator)
      ->all_gather(*stream_, {data->data(), DType::kFloat32, 32}, out->data(), 32, {2, nullptr});
  (*communicator)->broadcast(*stream_, data->data(), 256, 0);
  (*communicator)->barrier();
  EXPECT_EQ(read(*out), std::vector<float>(64, 2.0f));
}

TEST_F(CudaDeviceTest, MoreRanksThanGpusAreRefused) {
  const int count = count_cuda_devices();
  const auto device = create_device("cuda", {}, {count, count + 1});
  ASSERT_FALSE(device.has_value());
  EXPECT_THAT(device.error().message, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(device.error().field, "tensor-parallel-size");
}

}  // namespace
}  // namespace refrain::worker
