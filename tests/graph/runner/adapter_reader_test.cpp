// The thread that reads LoRA adapters: one after the other, each to be taken once.
#include "worker/runner/adapter_reader.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <vector>

namespace refrain::worker {
namespace {

ipc::LoadAdapter adapter(AdapterId id) { return {id, "adapter", "digest"}; }

TEST(AdapterReader, ReadsOneAfterTheOtherAndSaysWhichCanBeTaken) {
  std::promise<void> gate;
  std::promise<void> last;
  std::vector<AdapterId> began, ended;
  AdapterReader reader([&](const ipc::LoadAdapter& message) -> Result<AdapterPlaces::Adapter> {
    began.push_back(message.id);
    if (message.id == 1) gate.get_future().wait();
    return AdapterPlaces::Adapter{};
  });
  reader.post(adapter(1), [&] { ended.push_back(1); });
  reader.post(adapter(2), [&] {
    ended.push_back(2);
    last.set_value();
  });
  EXPECT_TRUE(reader.has(1));
  EXPECT_TRUE(reader.has(2));
  EXPECT_FALSE(reader.has(3));
  int waited = 0;
  const auto alive = [&] {  // the second one waits for the first
    if (++waited == 1) gate.set_value();
  };
  EXPECT_TRUE(reader.take(2, alive));
  EXPECT_GE(waited, 1);
  last.get_future().wait();
  EXPECT_EQ(began, (std::vector<AdapterId>{1, 2}));
  EXPECT_EQ(ended, began);
  EXPECT_FALSE(reader.has(2));
  EXPECT_TRUE(reader.has(1));
  EXPECT_TRUE(reader.take(1, alive));
  EXPECT_FALSE(reader.has(1));
}

TEST(AdapterReader, WhatReadingThrowsIsAnErrorOfItsAdapter) {
  AdapterReader reader([](const ipc::LoadAdapter& message) -> Result<AdapterPlaces::Adapter> {
    if (message.id == 1) throw std::runtime_error("no memory");
    return AdapterPlaces::Adapter{};
  });
  reader.post(adapter(1), [] {});
  reader.post(adapter(2), [] {});
  const auto first = reader.take(1, [] {});
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().message, "no memory");
  EXPECT_TRUE(reader.take(2, [] {}));
}

TEST(AdapterReader, ForgetDropsWhatIsQueuedAndWaitsForTheOneUnderWay) {
  std::promise<void> began, gate;
  int read = 0;
  AdapterReader reader([&](const ipc::LoadAdapter& message) -> Result<AdapterPlaces::Adapter> {
    ++read;
    if (message.id == 1) {
      began.set_value();
      gate.get_future().wait();
    }
    return AdapterPlaces::Adapter{};
  });
  reader.post(adapter(1), [] {});
  reader.post(adapter(2), [] {});
  began.get_future().wait();
  auto forgotten = std::async(std::launch::async, [&] { reader.forget(); });
  while (reader.has(2)) std::this_thread::yield();  // it is queued no more
  EXPECT_TRUE(reader.has(1));
  gate.set_value();
  forgotten.wait();
  EXPECT_FALSE(reader.has(1));
  reader.post(adapter(3), [] {});
  EXPECT_TRUE(reader.take(3, [] {}));
  EXPECT_EQ(read, 2) << "the second one was dropped";
}

}  // namespace
}  // namespace refrain::worker
