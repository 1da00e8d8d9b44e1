// A rank's pulls over a transport with programmed faults.

#include "worker/transfer/puller.h"

#include <gtest/gtest.h>

#include "tests/unit/transfer/fake_transport.h"
#include "tests/unit/transfer/looks.h"
#include "tests/unit/transfer/shards.h"
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
  void poll() { poll_with_looks(*puller_); }
  // What was told last; an error of the test when nothing was.
  ipc::Pulled last() const {
    EXPECT_FALSE(told_.empty());
    return told_.empty() ? ipc::Pulled{} : told_.back();
  }
  bool ended(TransferId id) const {
    return std::ranges::any_of(
        told_, [id](const ipc::Pulled& told) { return told.id == id && told.ended; });
  }
  // The transport is one that loses or holds reads.
  void plan(PlannedFaults faults) {
    auto real = std::make_unique<FakeTransport>();
    real->memory = fake_->memory;
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::make_unique<UnreliableTransport>(std::move(real), faults, clock_));
    puller_ = std::make_unique<Puller>(here_.memory, 0, std::move(transports),
                                       [this](const ipc::Pulled& told) { told_.push_back(told); });
    puller_->take(peers());
  }
  bool came() { return here_.holds(0, 3, 3, 1, 1) && here_.holds(0, 3, 4, 1, 2); }

  ManualClock clock_;  // of plan()
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
  for (int i = 0; i < 100 && !ended(5); ++i) puller_->poll(kNow);
  EXPECT_TRUE(came());
  EXPECT_EQ(last().id, 5u);
  EXPECT_EQ(last().error, "");
  EXPECT_GT(last().bytes, 0);
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
  ASSERT_TRUE(last().ended);
  EXPECT_EQ(last().error, "cancelled");
}

TEST_F(PullerTest, OfATransportThatLosesOneInTwoThePullEndsWhenItIsCancelled) {
  plan({.one_in = 2});
  puller_->take(order(5));
  for (int i = 0; i < 10; ++i) puller_->poll(kNow);
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  puller_->take(ipc::CancelPull{5});
  puller_->poll(kNow);
  EXPECT_TRUE(last().ended);
  EXPECT_EQ(last().error, "cancelled");
  puller_->take(order(6));
  puller_->take(ipc::KvPeers{1, 7, {}});
  puller_->poll(kNow);
  EXPECT_EQ(last().id, 6u);
  EXPECT_NE(last().error.find("gone"), std::string::npos);
}

TEST_F(PullerTest, AReadThatIsHeldWritesLateThoughItWasCancelled_R28) {
  plan({.one_in = 2, .held = 1, .hold = std::chrono::milliseconds(30)});
  puller_->take(order(5));
  puller_->poll(kNow);  // the other read is done
  puller_->take(ipc::CancelPull{5});
  clock_.advance(std::chrono::milliseconds(29));
  puller_->poll(kNow);
  EXPECT_FALSE(ended(5));
  EXPECT_FALSE(came());
  clock_.advance(std::chrono::milliseconds(1));
  puller_->poll(kNow);
  EXPECT_TRUE(ended(5));
  EXPECT_TRUE(came()) << "it wrote";
  for (size_t region = 0; region < 3; ++region) here_.write(region, 2);
  ASSERT_FALSE(came());
  puller_->take(order(6));
  puller_->take(order(7));
  puller_->poll(kNow);
  EXPECT_FALSE(ended(6));
  ASSERT_TRUE(ended(7)) << "one was to be held at a time";
  EXPECT_EQ(last().id, 7u);
  EXPECT_EQ(last().error, "");
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
  EXPECT_EQ(last().id, 6u);
  EXPECT_NE(last().error.find("group 1 of epoch 7 is not there"), std::string::npos);
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
  EXPECT_EQ(last().error, "");
  EXPECT_EQ(last().early_bytes * 3, last().bytes * 2) << "two of three layers";
}

TEST_F(PullerTest, OneRankThatIsBehindHoldsUpItsOwnPartAlone) {
  puller_->take(peers());
  puller_->take(early_order(5));
  for (size_t region = 0; region < 3; ++region) there_[0]->pass(region, 9);
  poll();
  EXPECT_EQ(std::ranges::count(told_, true, &ipc::Pulled::ended), 0);
  for (size_t region = 0; region < 3; ++region) there_[1]->pass(region, 10);  // a later one
  poll();
  ASSERT_TRUE(last().ended);
  EXPECT_EQ(last().error, "");
  EXPECT_GT(last().early_bytes, 0);
  EXPECT_TRUE(came());
}

TEST_F(PullerTest, WhereAllLayersHavePassedNothingIsEarly) {
  puller_->take(peers());
  for (size_t region = 0; region < 3; ++region) pass(region);
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(last().ended);
  EXPECT_EQ(last().early_bytes, 0);
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
  EXPECT_NE(last().error.find("epoch 7"), std::string::npos);
}

TEST_F(PullerTest, ALookThatFailsEndsThePull) {
  fake_->fails = {0};
  puller_->take(peers());
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(last().ended);
  EXPECT_EQ(last().error, "failed");
}

TEST_F(PullerTest, AGroupThatSaysNothingOfItsStepsIsNotReadEarly) {
  ipc::KvPeers silent = peers();
  silent.ranks[1].layer_flags = false;
  puller_->take(silent);
  puller_->take(early_order(5));
  poll();
  ASSERT_TRUE(last().ended);
  EXPECT_NE(last().error.find("rank 1 of group 1"), std::string::npos);
}

}  // namespace
}  // namespace refrain::worker
