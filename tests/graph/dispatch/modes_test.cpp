// CG-1 … CG-6: the five modes and how attention support and splitting lower them.

#include "worker/dispatch/modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain::worker {
namespace {

using ::testing::HasSubstr;
using Mode = CudagraphMode;
using Support = AttentionCGSupport;

struct ModeRow {
  const char* name;
  RuntimeMode decode, mixed;
  bool separate, splits;
};
constexpr ModeRow kTable[] = {
    {"NONE", RuntimeMode::kNone, RuntimeMode::kNone, false, false},
    {"PIECEWISE", RuntimeMode::kPiecewise, RuntimeMode::kPiecewise, false, true},
    {"FULL", RuntimeMode::kFull, RuntimeMode::kFull, false, false},
    {"FULL_DECODE_ONLY", RuntimeMode::kFull, RuntimeMode::kNone, true, false},
    {"FULL_AND_PIECEWISE", RuntimeMode::kFull, RuntimeMode::kPiecewise, true, true},
};

TEST(Modes, CG1TableOfFiveModes) {
  for (const ModeRow& row : kTable) {
    const auto mode = parse_cudagraph_mode(row.name);
    ASSERT_TRUE(mode.has_value()) << row.name;
    EXPECT_STREQ(to_string(*mode), row.name);
    EXPECT_EQ(decode_mode(*mode), row.decode) << row.name;
    EXPECT_EQ(mixed_mode(*mode), row.mixed) << row.name;
    EXPECT_EQ(separates_decode_keys(*mode), row.separate) << row.name;
    EXPECT_EQ(needs_splittable_program(*mode), row.splits) << row.name;
  }
}

TEST(Modes, CG1UnknownNameListsTheFive) {
  for (const char* name : {"full", "FULL_PIECEWISE", "", "FULL "}) {
    const auto mode = parse_cudagraph_mode(name);
    ASSERT_FALSE(mode.has_value()) << name;
    EXPECT_EQ(mode.error().field, "cudagraph_mode");
    for (const ModeRow& row : kTable) EXPECT_THAT(mode.error().message, HasSubstr(row.name));
  }
}

struct Downgrade {
  Mode from;
  Support support;
  int q;
  bool splittable;
  Mode to;
  int warnings;
};

class DowngradeTest : public ::testing::TestWithParam<Downgrade> {};

TEST_P(DowngradeTest, CG3toCG6GivesTheModeAndOneWarningARule) {
  const Downgrade& c = GetParam();
  const ResolvedMode resolved = resolve_cudagraph_mode(
      c.from, {{"layers.0.attention", Support::kAlways}, {"layers.1.mamba", c.support}}, c.q,
      c.splittable);
  EXPECT_STREQ(to_string(resolved.mode), to_string(c.to));
  ASSERT_EQ(resolved.warnings.size(), static_cast<size_t>(c.warnings));
  if (c.warnings > 0 && c.support != Support::kAlways) {
    EXPECT_THAT(resolved.warnings[0], HasSubstr("layers.1.mamba"));
    EXPECT_THAT(resolved.warnings[0], HasSubstr(to_string(c.support)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, DowngradeTest,
    ::testing::Values(
        // nothing to do
        Downgrade{Mode::kFull, Support::kAlways, 1, true, Mode::kFull, 0},
        Downgrade{Mode::kFullAndPiecewise, Support::kAlways, 3, true, Mode::kFullAndPiecewise, 0},
        Downgrade{Mode::kPiecewise, Support::kNever, 1, true, Mode::kPiecewise, 0},
        Downgrade{Mode::kNone, Support::kNever, 1, false, Mode::kNone, 0},
        // CG-3
        Downgrade{Mode::kFull, Support::kNever, 1, true, Mode::kPiecewise, 1},
        Downgrade{Mode::kFull, Support::kNever, 1, false, Mode::kNone, 1},
        Downgrade{Mode::kFull, Support::kUniformBatch, 1, true, Mode::kFullAndPiecewise, 1},
        Downgrade{Mode::kFull, Support::kUniformBatch, 1, false, Mode::kFullDecodeOnly, 1},
        // CG-3 then CG-5: single-token support and q > 1
        Downgrade{Mode::kFull, Support::kUniformSingleTokenDecode, 3, true, Mode::kPiecewise, 2},
        Downgrade{Mode::kFull, Support::kUniformSingleTokenDecode, 3, false, Mode::kNone, 2},
        // CG-4
        Downgrade{Mode::kFullDecodeOnly, Support::kNever, 1, true, Mode::kPiecewise, 1},
        Downgrade{Mode::kFullDecodeOnly, Support::kNever, 1, false, Mode::kNone, 1},
        Downgrade{Mode::kFullAndPiecewise, Support::kNever, 1, true, Mode::kPiecewise, 1},
        // CG-5
        Downgrade{Mode::kFullAndPiecewise, Support::kUniformSingleTokenDecode, 1, true,
                  Mode::kFullAndPiecewise, 0},
        Downgrade{Mode::kFullAndPiecewise, Support::kUniformSingleTokenDecode, 2, true,
                  Mode::kPiecewise, 1},
        Downgrade{Mode::kFullDecodeOnly, Support::kUniformSingleTokenDecode, 2, false, Mode::kNone,
                  1},
        Downgrade{Mode::kFullDecodeOnly, Support::kUniformBatch, 2, false, Mode::kFullDecodeOnly,
                  0},
        // CG-6
        Downgrade{Mode::kPiecewise, Support::kAlways, 1, false, Mode::kNone, 1},
        Downgrade{Mode::kFullAndPiecewise, Support::kAlways, 1, false, Mode::kFullDecodeOnly, 1}));

TEST(Modes, CG3NoGroupsMeansNothingForbidsFull) {
  EXPECT_EQ(resolve_cudagraph_mode(Mode::kFull, {}, 1, false).mode, Mode::kFull);
}

TEST(Modes, AttentionSupportNamesParseAndOrder) {
  const char* names[] = {"NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS"};
  for (int i = 0; i < 4; ++i) {
    const auto support = parse_attention_support(names[i]);
    ASSERT_TRUE(support.has_value());
    EXPECT_EQ(static_cast<int>(*support), i);
    EXPECT_STREQ(to_string(*support), names[i]);
  }
  EXPECT_FALSE(parse_attention_support("SOMETIMES").has_value());
}

}  // namespace
}  // namespace refrain::worker
