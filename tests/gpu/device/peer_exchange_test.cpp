// The exchange's kernels with both ranks on one GPU, a stream each: sums, a rank that comes late,
// one that stays away, and a stop by the host. Between processes: tests/gpu/collectives.
#include "worker/comm/cuda/peer_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/gpu/device/cuda_device_fixture.h"

namespace refrain::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kRanks = 2;

class PeerExchangeTest : public CudaDeviceFixture {
 protected:
  struct Rank {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Buffer> buffer, counters, data, verdict;
    PeerExchange exchange;
    uint32_t told() const { return *static_cast<volatile uint32_t*>(verdict->data()); }
    void tell(uint32_t word) { *static_cast<volatile uint32_t*>(verdict->data()) = word; }
  };

  void join(milliseconds deadline) {
    for (int r = 0; r < kRanks; ++r) {
      Rank& rank = ranks_[r];
      rank.stream = device_->create_stream();
      rank.buffer = device_->allocate(exchange_buffer_bytes(kRanks), MemoryTag::kCollectives);
      rank.counters = device_->allocate(kExchangeCounterBytes, MemoryTag::kCollectives);
      rank.data = device_->allocate(kExchangeBytes, MemoryTag::kCollectives);
      rank.verdict = device_->allocate_pinned(sizeof(uint32_t));
      fill(rank.buffer->data(), 0xff, rank.buffer->bytes());  // "nothing has come"
      fill(rank.counters->data(), 0, kExchangeCounterBytes);
      rank.tell(0);
      PeerExchange& exchange = rank.exchange;
      exchange.rank = r;
      exchange.size = kRanks;
      place_counters(exchange, rank.counters->data());
      exchange.verdict = static_cast<uint32_t*>(rank.verdict->data());
      exchange.deadline_ns = static_cast<uint64_t>(std::chrono::nanoseconds(deadline).count());
    }
    for (Rank& rank : ranks_) {
      for (int r = 0; r < kRanks; ++r)
        rank.exchange.buffers[r] = static_cast<uint4*>(ranks_[r].buffer->data());
    }
  }
  void fill(void* to, int byte, size_t bytes) {
    const auto pinned = device_->allocate_pinned(bytes);
    std::memset(pinned->data(), byte, bytes);
    stream_->copy(to, pinned->data(), bytes);
    stream_->synchronize();
  }

  // Puts rank r's numbers, `salt` + r + i, where its sum is made; their sum is due everywhere.
  void put(size_t count, float salt) {
    for (int r = 0; r < kRanks; ++r) {
      const auto pinned = device_->allocate_pinned(count * sizeof(float));
      auto* values = static_cast<float*>(pinned->data());
      for (size_t i = 0; i < count; ++i)
        values[i] = salt + static_cast<float>(r) + static_cast<float>(i % 1000);
      stream_->copy(ranks_[r].data->data(), values, count * sizeof(float));
      stream_->synchronize();
    }
  }
  void launch(int r, size_t count) {
    launch_peer_all_reduce(ranks_[r].stream->ref(), ranks_[r].exchange, ranks_[r].data->data(),
                           DType::kFloat32, count * sizeof(float));
  }
  void expect_sums(size_t count, float salt) {
    const auto pinned = device_->allocate_pinned(count * sizeof(float));
    const auto* values = static_cast<const float*>(pinned->data());
    for (int r = 0; r < kRanks; ++r) {
      stream_->copy(pinned->data(), ranks_[r].data->data(), count * sizeof(float));
      stream_->synchronize();
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[i], 2 * salt + 1 + 2 * static_cast<float>(i % 1000))
            << "rank " << r << ", number " << i;
      }
      EXPECT_EQ(ranks_[r].told(), 0u);
    }
  }
  void finish() {
    for (Rank& rank : ranks_) rank.stream->synchronize();
  }

  Rank ranks_[kRanks];
};

TEST_F(PeerExchangeTest, SumsOfEverySizeOneAfterTheOther) {
  join(milliseconds(10'000));
  float salt = 0;
  for (const size_t count : {1, 3, 4, 1000, 16 * 1024, 130'001, 7, 128 * 1024}) {
    put(count, ++salt);
    for (int r = 0; r < kRanks; ++r) launch(r, count);
    finish();
    expect_sums(count, salt);
  }
}

// One that waits long looks at the clock and at the host's word meanwhile. What it does there must
// not hold up what it waits for: the property is the time from the late rank's launch to the end.
TEST_F(PeerExchangeTest, ARankThatComesLateIsWaitedFor) {
  join(milliseconds(10'000));
  constexpr size_t kCount = 128 * 1024;
  constexpr int kRounds = 20;
  std::vector<double> us;
  for (int round = 0; round < kRounds; ++round) {
    put(kCount, static_cast<float>(round));
    const int late = round % kRanks;
    launch(1 - late, kCount);
    std::this_thread::sleep_for(milliseconds(3));  // the other one waits meanwhile
    const auto begun = steady_clock::now();
    launch(late, kCount);
    finish();
    us.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - begun).count());
    expect_sums(kCount, static_cast<float>(round));
  }
  std::sort(us.begin(), us.end());
  RecordProperty("us_from_the_late_launch_to_the_end", std::to_string(us[kRounds / 2]));
}

TEST_F(PeerExchangeTest, ARankThatStaysAwayIsNamedByTheDeadline_R9) {
  join(milliseconds(50));
  constexpr size_t kCount = 64 * 1024;
  put(kCount, 1);
  launch(0, kCount);
  ranks_[0].stream->synchronize();
  EXPECT_EQ(ranks_[0].told(), 2u) << "1 + the rank that did not come";
  launch(0, kCount);  // ends at once, whatever comes
  ranks_[0].stream->synchronize();
}

TEST_F(PeerExchangeTest, TheHostCanStopAWait_R9) {
  join(milliseconds(600'000));
  constexpr size_t kCount = 64 * 1024;
  put(kCount, 1);
  launch(0, kCount);
  const auto done = ranks_[0].stream->record();
  std::this_thread::sleep_for(milliseconds(20));  // long enough for a sum that waits for nobody
  EXPECT_FALSE(done->query());
  ranks_[0].tell(kAbort);
  done->synchronize();  // or the test does not end
  EXPECT_EQ(ranks_[0].told(), kAbort);
}

}  // namespace
}  // namespace refrain::worker
