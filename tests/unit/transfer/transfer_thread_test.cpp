// A rank's pulls over the real transports.

#include "worker/transfer/transfer_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/unit/transfer/shards.h"

namespace refrain::worker {
namespace {

// The real thread on the host device; both ends in this process.
class TransferThreadTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<TransferThread> start(Device& device, const KvMemory& memory) {
    TransferThread::Options options;
    options.listen_on = "tcp://127.0.0.1:*";
    options.backend = GetParam();
    options.report = [this](const ipc::Pulled& told) {
      const std::lock_guard lock(mutex_);
      told_.push_back(told);
      changed_.notify_all();
    };
    options.broken = [](const std::string& why) { ADD_FAILURE() << why; };
    auto thread = TransferThread::start(device, memory, std::move(options));
    EXPECT_TRUE(thread.has_value()) << thread.error().message;
    return std::move(*thread);
  }
  // ThreadSanitizer does not see how ZeroMQ's thread hands a frame over: a megabyte takes minutes.
  static bool too_slow_here() {
#ifdef REFRAIN_TSAN
    return GetParam() == std::string("tcp");
#else
    return false;
#endif
  }
  void SetUp() override {
#ifdef REFRAIN_TSAN
    if (GetParam() == std::string("ucx"))
      GTEST_SKIP() << "how UCX's ends meet, in memory that they share, is not seen";
#endif
  }
  ipc::Pulled wait_for_end(TransferId id) {
    std::unique_lock lock(mutex_);
    ipc::Pulled found;
    changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const ipc::Pulled& told : told_)
        if (told.id == id && told.ended) found = told;
      return found.ended;
    });
    return found;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ipc::Pulled> told_;
};

TEST_P(TransferThreadTest, BlocksComeAndAGroupThatIsGoneIsAnError) {
  if (too_slow_here()) GTEST_SKIP() << "each word of a frame of ZeroMQ's is a suppressed report";
  const auto device = create_host_device({});
  ASSERT_TRUE(device.has_value());
  Shape shape;
  shape.unit_bytes = 1 << 15;  // in all more than a frame holds
  Shard a(shape, 0, 2, 1), b(shape, 1, 2, 1), here(shape, 0, 1, 2);
  auto first = start(**device, a.memory), second = start(**device, b.memory);
  auto reader = start(**device, here.memory);
  first->post(ipc::KvPeers{2, 1, {reader->own()}});
  second->post(ipc::KvPeers{2, 1, {reader->own()}});
  reader->post(ipc::KvPeers{1, 7, {first->own(), second->own()}});
  reader->post(ipc::PullBlocks{5, 1, 7, {{{1, 2}, {3, 4}}, {{5}, {6}}}});
  const ipc::Pulled pulled = wait_for_end(5);
  EXPECT_TRUE(pulled.ended);
  EXPECT_EQ(pulled.error, "");
  EXPECT_EQ(pulled.bytes, 2 * 3 * (10 * shape.unit_bytes + shape.latent_bytes) + 5 * 8);
  EXPECT_TRUE(here.holds(0, 3, 3, 1, 1));
  EXPECT_TRUE(here.holds(0, 3, 4, 1, 2));
  EXPECT_TRUE(here.holds(3, 1, 6, 1, 5));
  EXPECT_TRUE(here.holds(0, 3, 2, 2, 2)) << "a block that was not named was written";
  reader->post(ipc::KvPeers{1, 7, {}});
  reader->post(ipc::PullBlocks{6, 1, 7, {{{1}, {1}}, {}}});
  EXPECT_NE(wait_for_end(6).error, "");
}

TEST_P(TransferThreadTest, ARunOfBlocksMayBeLargerThanAFrame) {
  if (too_slow_here()) GTEST_SKIP() << "each word of a frame of ZeroMQ's is a suppressed report";
  const auto device = create_host_device({});
  ASSERT_TRUE(device.has_value());
  const Shape shape{1, 5, 5, 1 << 16, 40};
  Shard there(shape, 0, 1, 1), here(shape, 0, 1, 2);
  auto other = start(**device, there.memory), reader = start(**device, here.memory);
  other->post(ipc::KvPeers{2, 1, {reader->own()}});
  reader->post(ipc::KvPeers{1, 7, {other->own()}});
  reader->post(ipc::PullBlocks{5, 1, 7, {{{1, 2}, {3, 4}}, {}}});
  EXPECT_EQ(wait_for_end(5).error, "");
  EXPECT_TRUE(here.holds(0, 1, 3, 1, 1));
  EXPECT_TRUE(here.holds(0, 1, 4, 1, 2));
}

TEST_P(TransferThreadTest, ARankThatEndsUnderAPullEndsThePull) {
  const auto device = create_host_device({});
  ASSERT_TRUE(device.has_value());
  Shard there(Shape{}, 0, 1, 1), here(Shape{}, 0, 1, 2);
  auto other = start(**device, there.memory);
  auto reader = start(**device, here.memory);
  reader->post(ipc::KvPeers{1, 7, {other->own()}});
  if (GetParam() == std::string("auto")) return;  // memory of a process that lives is there
  if (GetParam() == std::string("ucx")) {         // 1.13 may end a process that is refused at once
    reader->post(ipc::PullBlocks{4, 1, 7, {{{1}, {3}}, {}}});
    ASSERT_EQ(wait_for_end(4).error, "");
  }
  other.reset();  // it never answers
  reader->post(ipc::PullBlocks{5, 1, 7, {{{1}, {3}}, {}}});
  reader->post(ipc::CancelPull{5});
  const std::string error = wait_for_end(5).error;
  if (GetParam() == std::string("tcp")) {
    EXPECT_EQ(error, "cancelled");
  } else {
    EXPECT_NE(error, "") << "UCX may see first that the rank is gone";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TransferThreadTest, ::testing::Values("auto", "tcp", "ucx"),
                         [](const auto& backend) { return std::string(backend.param); });

}  // namespace
}  // namespace refrain::worker
