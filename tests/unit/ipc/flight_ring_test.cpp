// The flight recorder outlives its writer and never shows a torn record.
#include "ipc/shm/flight_ring.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace refrain::ipc {
namespace {

FlightRing ring_of(const UniqueFd& fd) {
  auto ring = FlightRing::map(fd.get());
  EXPECT_TRUE(ring.has_value()) << ring.error().message;
  return std::move(*ring);
}

UniqueFd memory() {
  auto fd = FlightRing::create();
  EXPECT_TRUE(fd.has_value());
  return std::move(*fd);
}

TEST(FlightRing, KeepsTheLastRecordsInOrder) {
  const UniqueFd fd = memory();
  FlightRing writer = ring_of(fd);
  const FlightRing reader = ring_of(fd);
  EXPECT_TRUE(reader.read(10).empty());
  for (uint64_t step = 1; step <= 1000; ++step) writer.write({.step = step});
  const auto last = reader.read(10);
  ASSERT_EQ(last.size(), 10u);
  for (size_t i = 0; i < last.size(); ++i) EXPECT_EQ(last[i].step, 991 + i);
  EXPECT_EQ(reader.read(100000).size(), FlightRing::kRecords - 1);
  writer.clear();
  EXPECT_TRUE(reader.read(10).empty());
}

TEST(FlightRing, SurvivesTheSigkillOfItsWriter_R12) {
  const UniqueFd fd = memory();
  const pid_t writer = ::fork();
  if (writer == 0) {
    FlightRing ring = ring_of(fd);
    for (uint64_t step = 1;; ++step)
      ring.write({.step = step, .num_tokens = static_cast<int32_t>(step & 0xffff)});
  }
  const FlightRing reader = ring_of(fd);
  while (reader.read(1).empty()) std::this_thread::yield();
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  const auto records = reader.read(FlightRing::kRecords);
  ASSERT_GE(records.size(), 1u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].num_tokens, static_cast<int32_t>(records[i].step & 0xffff));
    if (i > 0) {
      EXPECT_EQ(records[i].step, records[i - 1].step + 1);
    }
  }
}

TEST(FlightRing, AReaderMeanwhileSeesWholeRecordsOnly) {
  const UniqueFd fd = memory();
  FlightRing writer = ring_of(fd);
  const FlightRing reader = ring_of(fd);
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    for (uint64_t step = 1; !stop; ++step)
      writer.write({.time_ns = step, .epoch = step, .step = step});
  });
  for (int i = 0; i < 2000; ++i)
    for (const FlightRecord& record : reader.read(FlightRing::kRecords)) {
      ASSERT_EQ(record.time_ns, record.step);
      ASSERT_EQ(record.epoch, record.step);
    }
  stop = true;
  thread.join();
}

TEST(FlightRing, WithoutMemoryWritingDoesNothing) {
  FlightRing none;
  none.write({.step = 1});
  EXPECT_TRUE(none.read(10).empty());
  EXPECT_FALSE(FlightRing::map(-1).has_value());
}

}  // namespace
}  // namespace refrain::ipc
