// Collectives between GPUs, one process each. The test's own process never touches CUDA, so that
// its forked ranks can.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/unit/device/ranks.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

constexpr int kTimeoutMs = 20000;

int count_gpus() {
  int count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) ++count;
  return count;
}

// What a rank needs, in the order in which it must not be destroyed.
struct Rank {
  Rank(const std::string& token, int rank, int size, int timeout_ms = kTimeoutMs) {
    auto made = create_device("cuda", {}, {rank, size});
    if (!made) throw DeviceError(made.error().message);
    device = std::move(*made);
    stream = device->create_stream();
    auto joined = device->create_communicator(token, rank, size, timeout_ms);
    if (!joined) throw DeviceError(joined.error().message);
    communicator = std::move(*joined);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> communicator;
};

class GpuGroup : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (count_gpus() < size_) GTEST_SKIP() << "needs " << size_ << " GPUs";
  }
  void TearDown() override { EXPECT_TRUE(segments_of(token_).empty()); }
  void expect_all(const std::vector<std::string>& results, const std::string& expected) {
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(results[rank], expected) << "rank " << rank;
    }
  }
  int size_ = GetParam();
  std::string token_ = fresh_token();
};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuGroup, testing::Values(2, 4));

// Values whose float32 sum depends on the order of adding.
float value_of(int rank, int64_t index, int round) {
  const float sign = (index + rank) % 2 == 0 ? 1.0f : -1.0f;
  return sign * (1.0f + static_cast<float>((index * 7919 + rank * 104729 + round * 31) % 9973)) *
         (rank % 2 == 0 ? 1e4f : 1e-3f);
}

void put(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<BFloat16*>(data)[index] = to_bfloat16(value);
  }
}
float get(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kFloat32 ? static_cast<const float*>(data)[index]
                                  : to_float(static_cast<const BFloat16*>(data)[index]);
}

// Sums of several sizes, in turn, replayed from graphs: exact rank-order sums while small.
std::string check_sums(Rank& rank, int size, DType dtype) {
  constexpr size_t kSmall = size_t{256} << 10;
  const std::vector<int64_t> counts = {1, 3, 4096, 5000, 131072, 131073, 700001};
  for (const int64_t count : counts) {
    const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
    auto data = rank.device->allocate(bytes, MemoryTag::kOther);
    auto pinned = rank.device->allocate_pinned(bytes);
    const auto sum = [&] {
      rank.communicator->all_reduce(*rank.stream, {data->data(), dtype, count}, count,
                                    {1, nullptr});
    };
    rank.stream->copy(data->data(), pinned->data(), bytes);
    sum();
    rank.stream->synchronize();
    rank.stream->begin_capture();
    rank.stream->copy(data->data(), pinned->data(), bytes);
    sum();
    auto graph = rank.stream->end_capture();
    auto result = rank.device->allocate_pinned(bytes);
    for (int round = 0; round < 5; ++round) {
      const int me = rank.communicator->rank();
      for (int64_t i = 0; i < count; ++i) put(pinned->data(), dtype, i, value_of(me, i, round));
      rank.stream->launch(*graph);
      rank.stream->copy(result->data(), data->data(), bytes);
      rank.stream->synchronize();
      for (int64_t i = 0; i < count; ++i) {
        float expected = 0, magnitude = 0;
        for (int r = 0; r < size; ++r) {
          float one[1];
          put(one, dtype, 0, value_of(r, i, round));
          expected += get(one, dtype, 0);
          magnitude += std::abs(get(one, dtype, 0));
        }
        put(&expected, dtype, 0, expected);
        const float wanted = get(&expected, dtype, 0), got = get(result->data(), dtype, i);
        const bool good = bytes <= kSmall || size == 2
                              ? got == wanted
                              : std::abs(got - wanted) <= magnitude * 0.01f;
        if (!good) return fmt::format("{} of {}: {} is not {}", i, count, got, wanted);
      }
    }
  }
  return "good";
}

TEST_P(GpuGroup, SumsAreMadeInRankOrder) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    token_ = fresh_token();
    expect_all(run_ranks(size_,
                         [&](int r) {
                           Rank rank(token_, r, size_);
                           return check_sums(rank, size_, dtype);
                         }),
               "good");
  }
}

TEST_P(GpuGroup, GathersAndBroadcasts) {
  const auto body = [&](int r) -> std::string {
    Rank rank(token_, r, size_);
    constexpr int64_t kCols = 1000;
    constexpr int kRows = 3;
    const size_t bytes = kCols * kRows * sizeof(float);
    auto in = rank.device->allocate(bytes, MemoryTag::kOther);
    auto out = rank.device->allocate(bytes * static_cast<size_t>(size_), MemoryTag::kOther);
    auto pinned = rank.device->allocate_pinned(bytes * static_cast<size_t>(size_));
    auto* values = static_cast<float*>(pinned->data());
    for (int64_t i = 0; i < kCols * kRows; ++i) values[i] = static_cast<float>(r * 10000 + i);
    rank.stream->copy(in->data(), values, bytes);
    rank.communicator->all_gather(*rank.stream, {in->data(), DType::kFloat32, kCols}, out->data(),
                                  kCols, {kRows, nullptr});
    rank.communicator->broadcast(*rank.stream, in->data(), bytes, size_ - 1);
    rank.stream->copy(values, out->data(), out->bytes());
    rank.stream->synchronize();
    for (int peer = 0; peer < size_; ++peer) {
      for (int64_t i = 0; i < kCols * kRows; ++i) {
        if (values[peer * kCols * kRows + i] != static_cast<float>(peer * 10000 + i)) {
          return fmt::format("gathered {} of rank {} is wrong", i, peer);
        }
      }
    }
    rank.stream->copy(values, in->data(), bytes);
    rank.stream->synchronize();
    for (int64_t i = 0; i < kCols * kRows; ++i) {
      if (values[i] != static_cast<float>((size_ - 1) * 10000 + i)) return "broadcast is wrong";
    }
    rank.communicator->barrier();
    return "good";
  };
  expect_all(run_ranks(size_, body), "good");
}

// The last rank dies while the others wait for it inside a replayed sum, small (peer memory) or
// large (NCCL): they leave with an error that names it, well before the deadline.
TEST_P(GpuGroup, R7ADeadRankEndsTheOthersAndIsNamed) {
  for (const int64_t count : {int64_t{4096}, int64_t{1} << 20}) {
    token_ = fresh_token();
    const auto body = [&](int r) -> std::string {
      const auto lost = fmt::format("rank {} ", size_ - 1);
      const auto begun = std::chrono::steady_clock::now();
      try {
        Rank rank(token_, r, size_);
        auto data = rank.device->allocate(static_cast<size_t>(count) * 2, MemoryTag::kOther);
        const auto sum = [&] {
          rank.communicator->all_reduce(*rank.stream, {data->data(), DType::kBFloat16, count},
                                        count, {1, nullptr});
        };
        sum();
        rank.stream->synchronize();
        rank.communicator->barrier();
        if (r == size_ - 1) kill(getpid(), SIGKILL);
        sum();
        rank.stream->synchronize();
        return "the sum ended";
      } catch (const DeviceError& error) {
        const std::string what = error.what();
        const auto seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begun);
        if (what.find(lost) == std::string::npos && what.find("gave up") == std::string::npos) {
          return what;
        }
        return seconds.count() < 15 ? "left" : fmt::format("left after {} s", seconds.count());
      }
    };
    const auto results = run_ranks(size_, body);
    for (int r = 0; r + 1 < size_; ++r) EXPECT_EQ(results[static_cast<size_t>(r)], "left") << count;
    EXPECT_EQ(results.back(), "killed by signal 9");
  }
}

TEST_P(GpuGroup, OneGpuForTwoRanksIsRefused) {
  const auto body = [&](int r) -> std::string {
    auto device = create_device("cuda", {}, {0, 1});
    if (!device) return device.error().message;
    auto joined = (*device)->create_communicator(token_, r, size_, kTimeoutMs);
    return joined ? "joined" : joined.error().field;
  };
  expect_all(run_ranks(size_, body), "rank");
}

}  // namespace
}  // namespace refrain::worker
