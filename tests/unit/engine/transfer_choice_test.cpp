// Whether moving a prompt's blocks pays, by what transfers took.
#include "runtime/engine/transfer_choice.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

constexpr int64_t kTokenBytes = 1000;

MovedBlocks moved(int32_t tokens, double seconds) {
  return {tokens * kTokenBytes, tokens, seconds};
}

// 2 ms each, and 1 GB/s.
double takes(int32_t tokens) { return 0.002 + static_cast<double>(tokens) * kTokenBytes / 1e9; }

TEST(LinkSpeed, ALatencyAndARateAreFoundFromTransfersOfDifferentSizes) {
  LinkSpeed link;
  EXPECT_FALSE(link.seconds(1000));
  for (const int32_t tokens : {100, 5000, 300, 20000}) link.moved(moved(tokens, takes(tokens)));
  EXPECT_NEAR(link.bytes_a_second(), 1e9, 1e6);
  EXPECT_NEAR(link.seconds(0).value(), 0.002, 1e-5);
  EXPECT_NEAR(link.seconds(8e6).value(), 0.010, 1e-5);
  EXPECT_NEAR(link.bytes_a_token(), kTokenBytes, 1e-6);
}

TEST(LinkSpeed, OfOneSizeTheRateIsThatOfTheWhole) {
  LinkSpeed link;
  for (int i = 0; i < 4; ++i) link.moved(moved(1000, 0.004));
  EXPECT_NEAR(link.bytes_a_second(), 2.5e8, 1);
  EXPECT_NEAR(link.seconds(2e6).value(), 0.008, 1e-9);
}

TEST(LinkSpeed, ALinkThatGetsSlowIsNoticed) {
  LinkSpeed link;
  for (int i = 0; i < 50; ++i) link.moved(moved(100 + i, takes(100 + i)));
  for (int i = 0; i < 50; ++i) link.moved(moved(100 + i, 10 * takes(100 + i)));
  EXPECT_GT(link.seconds(1e5).value(), 7 * takes(100));
}

TEST(LinkSpeed, TimesThatFallWithSizeGiveNoNegativeOnes) {
  LinkSpeed link;
  for (const int32_t tokens : {100, 200, 400, 800}) link.moved(moved(tokens, 1.0 / tokens));
  EXPECT_GE(link.seconds(0).value(), 0);
  EXPECT_GE(link.seconds(1e9).value(), 0);
  EXPECT_EQ(link.bytes_a_second(), 0) << "no rate follows from them";
}

TEST(TransferChoice, WhatIsNotKnownIsMoved) {
  TransferChoice choice;
  EXPECT_TRUE(choice.pays(10, 1e-9));
  for (int i = 0; i < 4; ++i) choice.moved(moved(1000, 0.004));
  EXPECT_TRUE(choice.pays(10, std::nullopt));
}

TEST(TransferChoice, TheLatencyKeepsShortPromptsWhereTheyAreAnswered) {
  TransferChoice choice;
  for (const int32_t tokens : {100, 5000, 300, 20000}) choice.moved(moved(tokens, takes(tokens)));
  EXPECT_FALSE(choice.pays(50, 10e-6)) << "0.5 ms to compute, 2 ms to move";
  EXPECT_TRUE(choice.pays(5000, 10e-6)) << "50 ms to compute, 7 ms to move";
  EXPECT_FALSE(choice.pays(5000, 1e-6)) << "5 ms to compute";
  EXPECT_EQ(choice.kept(), 2u);
}

TEST(TransferChoice, NowAndThenTheLinkIsMeasuredAgain) {
  TransferChoice choice;
  for (int i = 0; i < 4; ++i) choice.moved(moved(1000, 1.0));
  uint64_t tried = 0;
  for (uint64_t i = 0; i < 3 * TransferChoice::kTryAgain; ++i) tried += choice.pays(100, 1e-6);
  EXPECT_EQ(tried, 3u);
  for (int i = 0; i < 500; ++i) choice.moved(moved(1000, 1e-6));
  EXPECT_TRUE(choice.pays(100, 1e-6)) << "the link is fast again";
}

}  // namespace
}  // namespace refrain
