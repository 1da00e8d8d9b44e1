// Collectives between real processes: values, equal bits, recording. design.md idea 4.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <tuple>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/device/test_launches.h"
#include "worker/comm/communicator.h"

namespace refrain::worker {
namespace {

constexpr int kTimeoutMs = 20000;

// What a rank needs for a collective; in the order in which it must not be destroyed.
struct Rank {
  Rank(const std::string& token, int rank, int size, int threads, int timeout_ms = kTimeoutMs)
      : device(host_device(threads)), stream(device->create_stream()) {
    auto joined = device->create_communicator({token, rank, size, timeout_ms});
    if (!joined) throw DeviceError(joined.error().message);
    communicator = std::move(*joined);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Communicator> communicator;
};

// Values whose float32 sum depends on the order of adding.
float value_of(int rank, int64_t index, int round = 0) {
  const float sign = (index + rank) % 2 == 0 ? 1.0f : -1.0f;
  return sign * (1.0f + static_cast<float>((index * 7919 + rank * 104729 + round * 31) % 9973)) *
         (rank % 2 == 0 ? 1e4f : 1e-3f);
}

uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  }
  return hash;
}

void expect_all(const std::vector<std::string>& results, const std::string& expected) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank], expected) << "rank " << rank;
  }
}

class CollectiveTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int size_ = std::get<0>(GetParam());
  int threads_ = std::get<1>(GetParam());
  std::string token_ = fresh_token();
  void TearDown() override { EXPECT_TRUE(segments_of(token_).empty()); }
};
#ifdef REFRAIN_TSAN  // the most threads do what fewer do
INSTANTIATE_TEST_SUITE_P(RanksAndThreads, CollectiveTest,
                         testing::Combine(testing::Values(4), testing::Values(2)));
#else
INSTANTIATE_TEST_SUITE_P(RanksAndThreads, CollectiveTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values(1, 2)));
#endif

template <class T>
std::string reduce_once(Rank& rank, int64_t rows, int64_t cols, int64_t stride, int32_t live) {
  const auto count = static_cast<size_t>(rows * stride);
  std::vector<T> data(count), expected(count);
  const auto encode = [](float value) {
    if constexpr (std::is_same_v<T, float>)
      return value;
    else
      return to_bfloat16(value);
  };
  const auto decode = [](T value) {
    if constexpr (std::is_same_v<T, float>)
      return value;
    else
      return to_float(value);
  };
  for (int64_t i = 0; i < rows * stride; ++i) {
    data[static_cast<size_t>(i)] = encode(value_of(rank.communicator->rank(), i));
    float sum = decode(encode(value_of(0, i)));
    for (int r = 1; r < rank.communicator->size(); ++r) sum += decode(encode(value_of(r, i)));
    const bool moves = i / stride < live && i % stride < cols;
    expected[static_cast<size_t>(i)] = moves ? encode(sum) : data[static_cast<size_t>(i)];
  }
  constexpr DType dtype = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  rank.communicator->all_reduce(*rank.stream, {data.data(), dtype, stride}, cols,
                                {static_cast<int32_t>(rows), &live});
  return std::memcmp(data.data(), expected.data(), count * sizeof(T)) == 0
             ? ""
             : fmt::format("{}x{} stride {} live {} differs;", rows, cols, stride, live);
}

TEST_P(CollectiveTest, AllReduceSumsInRankOrderInFloat32) {
  expect_all(run_ranks(size_,
                       [&](int r) {
                         Rank rank(token_, r, size_, threads_);
                         std::string errors;
                         for (const auto& [rows, cols, stride, live] :
                              std::vector<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                  {1, 576, 576, 1},
                                                                  {5, 67, 80, 5},
                                                                  {16, 576, 576, 3},
                                                                  {4, 64, 64, 0},
                                                                  {700, 576, 600, 650},
                                                                  {2, 200000, 200000, 2}}) {
                           errors += reduce_once<float>(rank, rows, cols, stride,
                                                        static_cast<int32_t>(live));
                           errors += reduce_once<BFloat16>(rank, rows, cols, stride,
                                                           static_cast<int32_t>(live));
                         }
                         return errors + "same";
                       }),
             "same");
}

TEST_P(CollectiveTest, EveryRankHoldsEqualBits) {
  const auto results = run_ranks(size_, [&](int r) {
    Rank rank(token_, r, size_, r % 2 == 0 ? 1 : threads_);  // teams may differ between ranks
    std::vector<float> data(37 * 576);
    for (size_t i = 0; i < data.size(); ++i) data[i] = value_of(r, static_cast<int64_t>(i));
    rank.communicator->all_reduce(*rank.stream, {data.data(), DType::kFloat32, 576}, 576,
                                  {37, nullptr});
    return std::to_string(hash_of(data.data(), data.size() * sizeof(float)));
  });
  expect_all(results, results[0]);
  EXPECT_EQ(results[0].find("exception"), std::string::npos) << results[0];
}

TEST_P(CollectiveTest, AllGatherPutsRanksBehindOneAnother) {
  expect_all(
      run_ranks(
          size_,
          [&](int r) {
            Rank rank(token_, r, size_, threads_);
            for (const int64_t cols : {3, 24576, 150000}) {
              constexpr int32_t kRows = 3;
              const int64_t stride = cols + 5;
              std::vector<float> in(static_cast<size_t>(kRows * stride));
              for (size_t i = 0; i < in.size(); ++i) in[i] = value_of(r, int64_t(i));
              std::vector<float> out(static_cast<size_t>(size_ * kRows * cols), -1.0f);
              const int32_t live = 2;  // the last row is padding: untouched
              rank.communicator->all_gather(*rank.stream, {in.data(), DType::kFloat32, stride},
                                            out.data(), cols, {kRows, &live});
              for (int64_t i = 0; i < int64_t(out.size()); ++i) {
                const int64_t row = i / cols % kRows;
                const int peer = static_cast<int>(i / cols / kRows);
                const float expected = row < live ? value_of(peer, row * stride + i % cols) : -1.0f;
                if (out[size_t(i)] != expected) {
                  return fmt::format("cols {} element {}: {}", cols, i, out[size_t(i)]);
                }
              }
            }
            return std::string("gathered");
          }),
      "gathered");
}

TEST_P(CollectiveTest, ReduceScatterGivesEachRankTheSumOfItsPart) {
  expect_all(
      run_ranks(size_,
                [&](int r) {
                  Rank rank(token_, r, size_, threads_);
                  for (const int64_t cols : {3, 576, 150000}) {
                    constexpr int32_t kRows = 3;
                    const auto part = static_cast<size_t>(kRows * cols);
                    std::vector<float> in(static_cast<size_t>(size_) * part), out(part, -1.0f);
                    for (size_t i = 0; i < in.size(); ++i) in[i] = value_of(r, int64_t(i));
                    rank.communicator->reduce_scatter(
                        *rank.stream, {in.data(), DType::kFloat32, cols},
                        {out.data(), DType::kFloat32, cols}, cols, kRows);
                    for (size_t i = 0; i < part; ++i) {
                      float sum = 0;
                      for (int peer = 0; peer < size_; ++peer)
                        sum += value_of(peer, int64_t(static_cast<size_t>(r) * part + i));
                      if (out[i] != sum)
                        return fmt::format("cols {} element {}: {} not {}", cols, i, out[i], sum);
                    }
                  }
                  return std::string("summed");
                }),
      "summed");
}

TEST_P(CollectiveTest, BroadcastGivesEveryRankTheRootsBytes) {
  expect_all(run_ranks(size_,
                       [&](int r) {
                         Rank rank(token_, r, size_, threads_);
                         for (int root = 0; root < size_; ++root) {
                           for (const size_t bytes : {size_t{1}, size_t{4097}, size_t{900000}}) {
                             std::vector<uint8_t> data(bytes, static_cast<uint8_t>(r + 1));
                             rank.communicator->broadcast(*rank.stream, data.data(), bytes, root);
                             if (data != std::vector<uint8_t>(bytes, uint8_t(root + 1))) {
                               return fmt::format("root {} bytes {}", root, bytes);
                             }
                           }
                         }
                         rank.communicator->barrier();
                         return std::string("received");
                       }),
             "received");
}

TEST_P(CollectiveTest, RecordedCollectivesReplayAHundredTimes) {
  expect_all(
      run_ranks(size_,
                [&](int r) {
                  constexpr int64_t kCols = 576;
                  Rank rank(token_, r, size_, threads_);
                  std::vector<float> in(2 * kCols), data(2 * kCols), all(size_t(size_) * 2 * kCols);
                  int32_t live = 2;
                  rank.stream->begin_capture();
                  for (int i = 0; i < 3; ++i) {
                    rank.stream->copy(data.data(), in.data(), data.size() * sizeof(float));
                    rank.communicator->all_reduce(
                        *rank.stream, {data.data(), DType::kFloat32, kCols}, kCols, {2, &live});
                  }
                  rank.communicator->all_gather(*rank.stream, {data.data(), DType::kFloat32, kCols},
                                                all.data(), kCols, {2, &live});
                  auto graph = rank.stream->end_capture();
                  for (int round = 0; round < 100; ++round) {
                    live = 1 + round % 2;
                    for (size_t i = 0; i < in.size(); ++i) in[i] = value_of(r, int64_t(i), round);
                    rank.stream->launch(*graph);
                    for (int64_t i = 0; i < live * kCols; ++i) {
                      float sum = value_of(0, i, round);
                      for (int peer = 1; peer < size_; ++peer) sum += value_of(peer, i, round);
                      const auto last = static_cast<size_t>((size_ - 1) * 2 * kCols + i);
                      if (data[size_t(i)] != sum || all[last] != sum) {
                        return fmt::format("round {} element {}", round, i);
                      }
                    }
                  }
                  return fmt::format("{} nodes", graph->num_nodes());
                }),
      "15 nodes");
}

TEST(Communicator, AGroupOfOneNeedsNoOthers) {
  Rank rank(fresh_token(), 0, 1, 2);
  std::vector<float> in{1, 2, 3, 4, 5, 6}, out(4);
  rank.communicator->all_gather(*rank.stream, {in.data(), DType::kFloat32, 3}, out.data(), 2,
                                {2, nullptr});
  EXPECT_EQ(out, (std::vector<float>{1, 2, 4, 5}));
  rank.communicator->all_reduce(*rank.stream, {in.data(), DType::kFloat32, 3}, 3, {2, nullptr});
  rank.communicator->broadcast(*rank.stream, in.data(), 4, 0);
  rank.communicator->barrier();
  EXPECT_EQ(in[5], 6.0f);
}

}  // namespace
}  // namespace refrain::worker
