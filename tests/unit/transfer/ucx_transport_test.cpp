// UCX as a transport between two ends in one process: whole reads, peers that go, memory that is
// not there, and a library that cannot be loaded.
#include "worker/transfer/ucx_transport.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/core/layer_flag.h"
#include "tests/unit/transfer/shards.h"

namespace refrain::worker {
namespace {

class UcxTransportTest : public ::testing::Test {
 protected:
  struct End {
    explicit End(const KvMemory& memory)
        : transport(UcxTransport::open(memory, /*on_gpu=*/false).value()), own(export_of(memory)) {
      transport->describe(own);
    }
    std::unique_ptr<UcxTransport> transport;
    ipc::KvExport own;
  };

  void SetUp() override {
#ifdef REFRAIN_TSAN
    GTEST_SKIP() << "how UCX's ends meet, in memory that they share, is not seen";
#endif
    there_ = std::make_unique<End>(there_memory_.memory);
    here_ = std::make_unique<End>(here_memory_.memory);
    ASSERT_TRUE(here_->transport->import(kThere, there_->own).has_value());
  }

  // Until the read has ended: how it ended.
  std::string end_of(ReadId id) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (there_) there_->transport->poll(std::chrono::milliseconds(0));
      for (const Transport::Progress& progress :
           here_->transport->poll(std::chrono::milliseconds(1))) {
        bytes_ += progress.bytes;
        if (progress.id == id && progress.ended) return progress.error;
      }
    }
    return "it does not end";
  }
  std::string read(std::vector<Read> reads) {
    bytes_ = 0;
    here_->transport->post(++reads_, kThere, std::move(reads));
    return end_of(reads_);
  }

  static constexpr PeerId kThere = 2;
  static constexpr Shape kShape{.layers = 3, .unit_bytes = 1 << 18};  // a block: several pieces
  Shard there_memory_{kShape, 0, 1, 1}, here_memory_{kShape, 0, 1, 2};
  std::unique_ptr<End> there_, here_;
  ReadId reads_ = 0;
  int64_t bytes_ = 0;
};

TEST_F(UcxTransportTest, BlocksComeWholeAndFlagsWithThem) {
  const auto block = static_cast<size_t>(there_memory_.memory.states[0].block_bytes());
  std::vector<Read> reads;
  for (size_t region = 0; region < 3; ++region)
    reads.push_back({region, 4 * block, here_memory_.memory.regions[region] + 6 * block, block});
  EXPECT_EQ(read(reads), "");
  EXPECT_EQ(bytes_, static_cast<int64_t>(3 * block));
  EXPECT_TRUE(here_memory_.holds(0, 3, 6, 1, 4));
  EXPECT_TRUE(here_memory_.holds(0, 3, 5, 2, 5)) << "a block that was not named was written";
  there_memory_.pass(1, 77);
  uint64_t words[2] = {5, 5};
  EXPECT_EQ(read({{4, 0, reinterpret_cast<std::byte*>(words), sizeof words}}), "");
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], kernels::layer_flag(77));
}

TEST_F(UcxTransportTest, WhatIsNotThereIsNotRead) {
  uint64_t word = 0;
  auto* to = reinterpret_cast<std::byte*>(&word);
  EXPECT_THROW(read({{5, 0, to, 8}}), std::exception) << "a region too many";
  const auto block = static_cast<size_t>(there_memory_.memory.states[0].block_bytes());
  EXPECT_THROW(read({{0, 7 * block - 4, to, 8}}), std::exception) << "behind the last block";
}

TEST_F(UcxTransportTest, APeerMayGoAndComeWithoutAnotherOnesReads) {
  uint64_t word = 0;
  auto* to = reinterpret_cast<std::byte*>(&word);
  here_->transport->forget(kThere);
  EXPECT_EQ(read({{0, 0, to, 8}}), kPeerGone);
  ASSERT_TRUE(here_->transport->import(kThere + 1, there_->own).has_value());
  here_->transport->post(++reads_, kThere + 1, {{0, 0, to, 8}});
  EXPECT_EQ(end_of(reads_), "");
}

TEST_F(UcxTransportTest, AReadThatIsCancelledEndsAndIsNotWrittenAfterwards) {
  const auto block = static_cast<size_t>(there_memory_.memory.states[0].block_bytes());
  here_->transport->post(++reads_, kThere, {{0, 0, here_memory_.memory.regions[0], 7 * block}});
  here_->transport->cancel(reads_);
  const std::string how = end_of(reads_);
  EXPECT_TRUE(how == kCancelled) << how;
  std::vector<std::byte> before(here_memory_.memory.regions[0],
                                here_memory_.memory.regions[0] + 7 * block);
  uint64_t word = 0;
  EXPECT_EQ(read({{0, 0, reinterpret_cast<std::byte*>(&word), 8}}), "");
  EXPECT_TRUE(std::equal(before.begin(), before.end(), here_memory_.memory.regions[0]));
}

TEST_F(UcxTransportTest, APeerThatToldTooLittleIsRefused) {
  ipc::KvExport none = there_->own;
  none.ucx = {};
  EXPECT_EQ(here_->transport->import(9, none).error().message, "it does not use UCX");
  ipc::KvExport fewer = there_->own;
  fewer.ucx.regions.pop_back();
  EXPECT_FALSE(here_->transport->import(9, fewer).has_value());
  ipc::KvExport unregistered = there_->own;
  unregistered.ucx.memory.pop_back();
  const Status refused = here_->transport->import(9, unregistered);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("has not registered region"), std::string::npos);
}

std::string refusal_of(const char* library) {
  setenv("REFRAIN_UCX", library, 1);
  const auto loaded = UcxLibrary::load();
  unsetenv("REFRAIN_UCX");
  return loaded ? "loaded" : loaded.error().message;
}

TEST(UcxLibraryTest, ALibraryThatIsNotThereIsASentence) {
  const std::string refusal = refusal_of("/nowhere/libucp.so");
  for (const char* word : {"/nowhere/libucp.so", "libucx-cu13", "REFRAIN_UCX"})
    EXPECT_NE(refusal.find(word), std::string::npos) << refusal;
}

TEST(UcxLibraryTest, ALibraryWithoutItsFunctionsIsASentence) {
  EXPECT_EQ(refusal_of("libm.so.6"),
            "libm.so.6 has no ucp_init_version; UCX 1.13 or later is needed");
}

}  // namespace
}  // namespace refrain::worker
