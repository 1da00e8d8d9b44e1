// CG-2, CG-7 … CG-10: capture sizes, decode ladders, what no key covers.

#include "worker/dispatch/capture_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ipc/protocol/limits.h"
#include "worker/dispatch/dispatcher.h"

namespace refrain::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CudagraphOptions options(std::vector<int32_t> sizes, int32_t max_num_seqs) {
  CudagraphOptions o;
  o.capture_sizes = std::move(sizes);
  o.max_num_seqs = max_num_seqs;
  return o;
}

CudagraphConfig resolve(const CudagraphOptions& o) {
  auto config = resolve_cudagraph_config(o, {}, true);
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return *config;
}

Error error_of(const CudagraphOptions& o) {
  const auto config = resolve_cudagraph_config(o, {}, true);
  EXPECT_FALSE(config.has_value());
  return config ? Error{} : config.error();
}

TEST(CaptureSizes, CG7DefaultLadder) {
  const auto sizes = *default_capture_sizes({256, 8192, 1}, std::nullopt);
  EXPECT_EQ(sizes.front(), 1);
  EXPECT_EQ(sizes.back(), 512);
  EXPECT_THAT(sizes, SizeIs(3 + 31 + 17));  // 1 2 4; 8…248 by 8; 256…512 by 16
  EXPECT_THAT(*default_capture_sizes({12, 8192, 1}, std::nullopt),
              ElementsAre(1, 2, 4, 8, 12, 16, 24));
}

TEST(CaptureSizes, CG7MaximumFollowsSeqsAndQueryLengthUpTo512) {
  EXPECT_EQ(default_capture_sizes({4, 8192, 3}, std::nullopt)->back(), 24);
  EXPECT_EQ(default_capture_sizes({1000, 8192, 3}, std::nullopt)->back(), 512);
  EXPECT_EQ(default_capture_sizes({1, 8192, 1}, std::nullopt)->back(), 2);
}

TEST(CaptureSizes, CG7TokenBudgetBoundsAndJoins) {
  EXPECT_THAT(*default_capture_sizes({256, 20, 1}, std::nullopt), ElementsAre(1, 2, 4, 8, 16, 20));
  EXPECT_THAT(*default_capture_sizes({3, 1, 1}, std::nullopt), ElementsAre(1));
}

TEST(CaptureSizes, CG7GivenMaximumCutsTheDefaultList) {
  EXPECT_THAT(*default_capture_sizes({256, 8192, 1}, 20), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(*default_capture_sizes({18, 8192, 1}, 20), ElementsAre(1, 2, 4, 8, 16, 18));
  EXPECT_EQ(default_capture_sizes({256, 8192, 1}, 1024)->back(), 1024);
  EXPECT_EQ(default_capture_sizes({256, 8192, 1}, 0).error().field, "max_cudagraph_capture_size");
}

TEST(CaptureSizes, CG8UserListSortedUniqueAndJoinedByDecodeLimit) {
  EXPECT_THAT(resolve(options({16, 1, 8, 2, 4, 8}, 12)).capture_sizes,
              ElementsAre(1, 2, 4, 8, 12, 16));
  EXPECT_THAT(resolve(options({4, 8}, 12)).capture_sizes, ElementsAre(4, 8));
}

TEST(CaptureSizes, CG8SizesAboveTokenBudgetDropWithAWarning) {
  CudagraphOptions o = options({1, 2, 4, 64, 128}, 4);
  o.max_num_batched_tokens = 32;
  const CudagraphConfig config = resolve(o);
  EXPECT_THAT(config.capture_sizes, ElementsAre(1, 2, 4));
  ASSERT_THAT(config.warnings, SizeIs(1));
  EXPECT_THAT(config.warnings[0], HasSubstr("64, 128"));
  EXPECT_THAT(config.warnings[0], HasSubstr("max_num_batched_tokens"));
}

TEST(CaptureSizes, CG8ErrorsNameTheField) {
  EXPECT_EQ(error_of(options({}, 4)).field, "cudagraph_capture_sizes");
  EXPECT_EQ(error_of(options({4, 0}, 4)).field, "cudagraph_capture_sizes");
  EXPECT_EQ(error_of(options({4, -3}, 4)).field, "cudagraph_capture_sizes");
  CudagraphOptions emptied = options({64}, 4);
  emptied.max_num_batched_tokens = 32;
  EXPECT_EQ(error_of(emptied).field, "cudagraph_capture_sizes");
  CudagraphOptions maximum = options({1, 2, 4}, 4);
  maximum.max_capture_size = 8;
  EXPECT_EQ(error_of(maximum).field, "max_cudagraph_capture_size");
}

// Two keys a size must fit into the manifest that a worker sends.
TEST(CaptureSizes, R1_NoListIsLongerThanAManifest) {
  const CaptureSizeLimits wide{1 << 20, 1 << 20, 1};
  const auto largest = default_capture_sizes(wide, ipc::kMaxCaptureSize);
  ASSERT_TRUE(largest);
  EXPECT_LE(largest->size(), ipc::kMaxCaptureSizes);
  EXPECT_EQ(default_capture_sizes(wide, ipc::kMaxCaptureSize + 1).error().field,
            "max_cudagraph_capture_size");
  std::vector<int32_t> sizes(ipc::kMaxCaptureSizes + 1);
  std::iota(sizes.begin(), sizes.end(), 1);
  std::vector<std::string> warnings;
  EXPECT_EQ(check_capture_sizes(sizes, wide, {}, warnings).error().field,
            "cudagraph_capture_sizes");
  sizes.pop_back();
  EXPECT_TRUE(check_capture_sizes(sizes, wide, {}, warnings));
}

TEST(CaptureSizes, CG8MaximumIsComparedWithWhatRemains) {
  CudagraphOptions o = options({1, 2, 64}, 1);
  o.max_num_batched_tokens = 32;
  o.max_capture_size = 2;
  EXPECT_THAT(resolve(o).capture_sizes, ElementsAre(1, 2));
  o.max_capture_size = 64;
  EXPECT_EQ(error_of(o).field, "max_cudagraph_capture_size");
}

TEST(CaptureSizes, CG8EmptyListIsFineWithoutGraphs) {
  CudagraphOptions o = options({}, 4);
  o.mode = "NONE";
  EXPECT_THAT(resolve(o).capture_sizes, IsEmpty());
}

TEST(CaptureSizes, CG9DecodeLadder) {
  EXPECT_THAT(decode_sizes({1, 2, 4, 8, 16, 24}, 8, 3), ElementsAre(3, 6, 9, 18, 24));
  EXPECT_THAT(decode_sizes({1, 2, 4, 8, 12, 16}, 12, 1), ElementsAre(1, 2, 4, 8, 12));
  // 16 rounds up to 18, above the maximum; 24 does not fit.
  EXPECT_THAT(decode_sizes({1, 2, 4, 8, 16}, 8, 3), ElementsAre(3, 6, 9));
  EXPECT_THAT(decode_sizes({1, 2}, 8, 3), IsEmpty());
  EXPECT_THAT(decode_sizes({}, 8, 3), IsEmpty());
}

TEST(CaptureSizes, CG10UncoveredDecodeBatchesAreOneWarning) {
  const CudagraphConfig config = resolve(options({1, 2, 4}, 100));
  ASSERT_THAT(config.warnings, SizeIs(1));
  EXPECT_THAT(config.warnings[0], HasSubstr("96 of the 100"));
  EXPECT_THAT(config.warnings[0], HasSubstr("5 requests"));
  EXPECT_THAT(resolve(options({1, 2, 4}, 4)).warnings, IsEmpty());
}

TEST(CaptureSizes, CG10BatchesBeyondTheTokenBudgetAreNotLegal) {
  CudagraphOptions o = options({1, 2, 4}, 100);
  o.max_num_batched_tokens = 4;
  EXPECT_THAT(resolve(o).warnings, IsEmpty());
}

TEST(CaptureSizes, CG10CountsBatchesThatPaddingOffLeavesOut) {
  CudagraphOptions o = options({1, 2, 4}, 4);
  o.disable_padding = true;
  ASSERT_THAT(resolve(o).warnings, SizeIs(1));
  EXPECT_THAT(resolve(o).warnings[0], HasSubstr("3 requests"));
}

TEST(ResolveConfig, CG2EnforceEagerGivesNoneAndNoSizes) {
  CudagraphOptions o = options({1, 2, 4}, 4);
  o.enforce_eager = true;
  const CudagraphConfig config = resolve(o);
  EXPECT_EQ(config.mode, CudagraphMode::kNone);
  EXPECT_THAT(config.capture_sizes, IsEmpty());
}

TEST(ResolveConfig, CG2DefaultsByArchitecture) {
  CudagraphOptions o;
  EXPECT_EQ(resolve(o).mode, CudagraphMode::kFullAndPiecewise);
  o.mode = "FULL";
  EXPECT_EQ(resolve(o).mode, CudagraphMode::kFull);
  o.encoder_decoder = true;
  EXPECT_EQ(resolve(o).mode, CudagraphMode::kFullDecodeOnly);
  EXPECT_THAT(resolve(o).warnings, SizeIs(1));
}

TEST(ResolveConfig, BadLimitsNameTheirField) {
  CudagraphOptions o;
  o.max_num_seqs = 0;
  EXPECT_EQ(error_of(o).field, "max_num_seqs");
  o = {};
  o.max_num_batched_tokens = 0;
  EXPECT_EQ(error_of(o).field, "max_num_batched_tokens");
  o = {};
  o.num_speculative_tokens = -1;
  EXPECT_EQ(error_of(o).field, "num_speculative_tokens");
  o = {};
  o.max_padding_ratio = 0.5;
  EXPECT_EQ(error_of(o).field, "max_padding_ratio");
}

}  // namespace
}  // namespace refrain::worker
