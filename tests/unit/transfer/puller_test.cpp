// A rank's pulls over a transport with programmed faults, and over the real ones.

#include "worker/transfer/puller.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/unit/transfer/fake_transport.h"
#include "tests/unit/transfer/shards.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/transfer/unreliable_transport.h"

namespace refrain::worker {
namespace {

constexpr std::chrono::milliseconds kNow{0};

class PullerTest : public ::testing::Test {
 protected:
  PullerTest() {
    auto fake = std::make_unique<FakeTransport>();
    fake_ = fake.get();
    for (int rank = 0; rank < 2; ++rank) {
      there_.push_back(std::make_unique<Shard>(Shape{}, rank, 2, 1));
      fake_->memory[100 + rank] = there_.back()->memory.regions;
      fake_->memory[100 + rank].push_back(there_.back()->memory.flags);
    }
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::move(fake));
    puller_ = std::make_unique<Puller>(here_.memory, 0, std::move(transports),
                                       [this](const ipc::Pulled& told) { told_.push_back(told); });
  }
  ipc::KvPeers peers(Epoch epoch = 7) {
    ipc::KvPeers peers{1, epoch, {}};
    for (int rank = 0; rank < 2; ++rank) {
      peers.ranks.push_back(export_of(there_[static_cast<size_t>(rank)]->memory));
      peers.ranks.back().pid = 100 + rank;
    }
    return peers;
  }
  static ipc::PullBlocks order(TransferId id, Epoch epoch = 7) {
    return {id, 1, epoch, {{{1, 2}, {3, 4}}, {}}};
  }
  // While its step 9 runs.
  static ipc::PullBlocks early_order(TransferId id, Epoch epoch = 7) {
    ipc::PullBlocks early = order(id, epoch);
    early.step = 9;
    return early;
  }
  void pass(size_t region, uint32_t step = 9) {
    for (const auto& rank : there_) rank->pass(region, step);
  }
  // For some looks at flags, and what comes of them.
  void poll() {
    const TimePoint end = steady_clock().now() + std::chrono::milliseconds(5);
    while (steady_clock().now() < end) puller_->poll(kNow);
  }
  // The transport is one that loses or holds reads.
  void plan(PlannedFaults faults) {
    auto real = std::make_unique<FakeTransport>();
    real->memory = fake_->memory;
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::make_unique<UnreliableTransport>(std::move(real), faults));
    puller_ = std::make_unique<Puller>(here_.memory, 0, std::move(transports),
                                       [this](const ipc::Pulled& told) { told_.push_back(told); });
    puller_->take(peers());
  }
  bool came() { return here_.holds(0, 3, 3, 1, 1) && here_.holds(0, 3, 4, 1, 2); }

  Shard here_{Shape{}, 0, 1, 2};
  std::vector<std::unique_ptr<Shard>> there_;
  FakeTransport* fake_ = nullptr;
  std::unique_ptr<Puller> puller_;
  std::vector<ipc::Pulled> told_;
};

TEST_F(PullerTest, EndsOnceWhenAllRanksHaveGiven) {
  fake_->slow = true;
  puller_->take(peers());
  puller_->take(order(5));
  for (int i = 0; i < 100 && (told_.empty() || !told_.back().ended); ++i) puller_->poll(kNow);
  EXPECT_TRUE(came());
  ASSERT_FALSE(told_.empty());
  EXPECT_EQ(told_.back().id, 5u);
  EXPECT_EQ(told_.back().error, "");
  EXPECT_GT(told_.back().bytes, 0);
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 1);
}

TEST_F(PullerTest, AReadThatIsLostEndsWhenItIsCancelledAndNotBefore) {
  fake_->loses = {1};
  puller_->take(peers());
  puller_->take(order(5));
  for (int i = 0; i < 10; ++i) puller_->poll(kNow);
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  puller_->take(ipc::CancelPull{5});
  puller_->poll(kNow);
  ASSERT_TRUE(told_.back().ended);
  EXPECT_EQ(told_.back().error, "cancelled");
}

TEST_F(PullerTest, OfATransportThatLosesOneInTwoThePullEndsWhenItIsCancelled) {
  plan({.one_in = 2});
  puller_->take(order(5));
  for (int i = 0; i < 10; ++i) puller_->poll(kNow);
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  puller_->take(ipc::CancelPull{5});
  puller_->poll(kNow);
  ASSERT_FALSE(told_.empty());
  EXPECT_TRUE(told_.back().ended);
  EXPECT_EQ(told_.back().error, "cancelled");
  puller_->take(order(6));
  puller_->take(ipc::KvPeers{1, 7, {}});
  puller_->poll(kNow);
  EXPECT_EQ(told_.back().id, 6u);
  EXPECT_NE(told_.back().error.find("gone"), std::string::npos);
}

TEST_F(PullerTest, AReadThatIsHeldWritesLateThoughItWasCancelled_R28) {
  plan({.one_in = 2, .held = 1, .hold = std::chrono::milliseconds(30)});
  const TimePoint begun = steady_clock().now();
  puller_->take(order(5));
  puller_->poll(kNow);  // the other read is done
  puller_->take(ipc::CancelPull{5});
  puller_->poll(kNow);
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  EXPECT_FALSE(came());
  while (std::ranges::count(told_, true, &ipc::Pulled::ended) == 0) puller_->poll(kNow);
  EXPECT_GE(steady_clock().now() - begun, std::chrono::milliseconds(30));
  EXPECT_TRUE(came()) << "it wrote";
  for (size_t region = 0; region < 3; ++region) here_.write(region, 2);
  ASSERT_FALSE(came());
  puller_->take(order(6));
  puller_->take(order(7));
  while (told_.back().id != 7u || !told_.back().ended) puller_->poll(kNow);
  EXPECT_EQ(told_.back().error, "") << "one was to be held at a time";
  EXPECT_TRUE(came());
}

TEST_F(PullerTest, AReadThatFailsEndsTheOthersFirst) {
  fake_->fails = {0};
  fake_->loses = {1};
  puller_->take(peers());
  puller_->take(order(5));
  puller_->poll(kNow);
  EXPECT_EQ(fake_->cancelled.size(), 1u);
  EXPECT_TRUE(told_.empty()) << "the other read may still write";
  puller_->poll(kNow);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].error, "failed");
}

TEST_F(PullerTest, AGroupThatGoesEndsItsPulls) {
  fake_->loses = {0, 1};
  puller_->take(peers());
  puller_->take(order(5));
  puller_->take(ipc::KvPeers{1, 7, {}});
  puller_->poll(kNow);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].error, "gone");
  puller_->take(order(6));
  EXPECT_EQ(told_.back().id, 6u);
  EXPECT_NE(told_.back().error.find("group 1 of epoch 7 is not there"), std::string::npos);
}

TEST_F(PullerTest, AnOrderOfAnotherEpochIsRefused) {
  puller_->take(peers(8));
  puller_->take(order(5, 7));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].error.find("epoch 7"), std::string::npos);
}

TEST_F(PullerTest, APeerThatNobodyReachesIsAnErrorOfThePull) {
  fake_->unreachable = true;
  puller_->take(peers());
  puller_->take(order(5));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].error.find("cannot be reached"), std::string::npos);
}

TEST_F(PullerTest, NothingToReadEndsAtOnce) {
  puller_->take(peers());
  puller_->take(ipc::PullBlocks{5, 1, 7, {{}, {}}});
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_TRUE(told_[0].ended);
  EXPECT_EQ(told_[0].error, "");
}

TEST_F(PullerTest, ALayerIsReadWhenTheStepHasPassedItAndNotBefore) {
  puller_->take(peers());
  for (const auto& rank : there_)
    for (size_t region = 0; region < 3; ++region) rank->write(region, 5);  // of the step before
  pass(0, 8);
  pass(1, 8);
  pass(2, 8);
  puller_->take(early_order(5));
  poll();
  EXPECT_TRUE(here_.holds(0, 3, 3, 2, 3)) << "nothing is read yet";
  for (size_t region = 0; region < 3; ++region) {
    for (const auto& rank : there_) rank->write(region, 1);
    pass(region);
    poll();
    EXPECT_TRUE(here_.holds(0, region + 1, 3, 1, 1));
    EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), region == 2 ? 1 : 0);
  }
  EXPECT_TRUE(came());
  EXPECT_EQ(told_.back().error, "");
  EXPECT_EQ(told_.back().early_bytes * 3, told_.back().bytes * 2) << "two of three layers";
}

TEST_F(PullerTest, OneRankThatIsBehindHoldsUpItsOwnPartAlone) {
  puller_->take(peers());
  puller_->take(early_order(5));
  for (size_t region = 0; region < 3; ++region) there_[0]->pass(region, 9);
  poll();
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  for (size_t region = 0; region < 3; ++region) there_[1]->pass(region, 10);  // a later one
  poll();
  ASSERT_TRUE(told_.back().ended);
  EXPECT_EQ(told_.back().error, "");
  EXPECT_GT(told_.back().early_bytes, 0);
  EXPECT_TRUE(came());
}

TEST_F(PullerTest, WhereAllLayersHavePassedNothingIsEarly) {
  puller_->take(peers());
  for (size_t region = 0; region < 3; ++region) pass(region);
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(told_.back().ended);
  EXPECT_EQ(told_.back().early_bytes, 0);
  EXPECT_TRUE(came());
}

TEST_F(PullerTest, APullThatWaitsForAStepEndsWhenItIsCancelled) {
  puller_->take(peers());
  puller_->take(early_order(5));
  poll();
  puller_->take(ipc::CancelPull{5});
  poll();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].error, "cancelled");
  for (size_t region = 0; region < 3; ++region) pass(region);
  poll();
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_TRUE(here_.holds(0, 3, 3, 2, 3)) << "it was read after its end";
}

// The group that comes back numbers its steps anew: its flags say nothing of the old ones.
TEST_F(PullerTest, APullThatWaitsForAStepOfAnotherEpochEnds) {
  puller_->take(peers());
  puller_->take(early_order(5));
  poll();
  puller_->take(peers(8));
  for (size_t region = 0; region < 3; ++region) pass(region);
  poll();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].error.find("gone"), std::string::npos);
  EXPECT_TRUE(here_.holds(0, 3, 3, 2, 3));
  puller_->take(early_order(6, 7));
  EXPECT_NE(told_.back().error.find("epoch 7"), std::string::npos);
}

TEST_F(PullerTest, ALookThatFailsEndsThePull) {
  fake_->fails = {0};
  puller_->take(peers());
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(told_.back().ended);
  EXPECT_EQ(told_.back().error, "failed");
}

TEST_F(PullerTest, AGroupThatSaysNothingOfItsStepsIsNotReadEarly) {
  ipc::KvPeers silent = peers();
  silent.ranks[1].layer_flags = false;
  puller_->take(silent);
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(told_.back().ended);
  EXPECT_NE(told_.back().error.find("rank 1 of group 1"), std::string::npos);
}

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
#ifdef __SANITIZE_THREAD__
    return GetParam() == std::string("tcp");
#else
    return false;
#endif
  }
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
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
