// planned_attention (plans made on the host, cascade attention) against double precision and plain
// attention, on every device.
#include "kernels/core/attention_units.h"
#include "tests/ops/attention_case.h"

namespace refrain::kernels {
namespace {

class PlannedAttentionTest : public OpsTest {
 protected:
  struct Planned {
    int32_t split_tokens = 1;
    bool known = true;
    int32_t shared_prefix = 0;
    bool wide = false;  // rows as in a model
  };
  void check(HeadShape shape, DType dtype, std::vector<RowSpec> rows, Planned planned,
             int padded = 0, int32_t window = 0) {
    SCOPED_TRACE(testing::Message()
                 << "heads " << shape.q_heads << "/" << shape.kv_heads << " of " << shape.head_dim
                 << ", block " << shape.block_size << ", " << to_string(dtype) << ", window "
                 << window << ", prefix " << planned.shared_prefix << ", known " << planned.known);
    AttentionCase c(harness(), shape, dtype, std::move(rows), padded, window, planned.wide,
                    planned.shared_prefix);
    c.make_plan(planned.split_tokens, planned.known, planned.shared_prefix > 0);
    const auto expected = c.expected();
    const std::vector<double> error(expected.size(), harness().attention_error(dtype));
    expect_close(c.run(&KernelTable::planned_attention), expected, error, dtype);
    const KernelTable& table = harness().table();
    if (planned.shared_prefix > 0 && table.cascade_attention != table.planned_attention)
      expect_close(c.run(&KernelTable::cascade_attention), expected, error, dtype);
  }
};

TEST_P(PlannedAttentionTest, MatchesDoublePrecisionForEveryHeadShape) {
  for (const DType dtype : kFloatTypes) {
    for (const int32_t dim : {8, 32, 40, 64, 80, 96, 128}) {
      check({3, 3, dim, 16}, dtype, {{0, 1}, {20, 1}, {700, 1}, {70, 3}}, {});
    }
    for (const int32_t group : {1, 3, 4, 8}) {
      check({2 * group, 2, 64, 16}, dtype, {{430, 1}, {0, 37}, {61, 5}, {129, 1}}, {}, 3);
    }
    check({64, 1, 16, 16}, dtype, {{300, 2}}, {2});
  }
}

TEST_P(PlannedAttentionTest, TakesRowsWhoseLengthOnlyTheDeviceKnows) {
  for (const DType dtype : kFloatTypes) {
    check({8, 2, 64, 16}, dtype, {{300, 3}, {1, 1}, {0, 2}, {90, 40}}, {3, false}, 2);
    check({8, 2, 64, 16}, dtype, {{300, 3}, {128, 1}, {200, 2}}, {3, false, 128}, 2);
  }
}

TEST_P(PlannedAttentionTest, KeepsToTheSlidingWindow) {
  for (const int32_t window : {1, 7, 64, 200}) {
    for (const bool known : {true, false}) {
      check({4, 2, 32, 16}, DType::kFloat32, {{450, 1}, {0, 90}, {263, 20}, {333, 3}}, {3, known},
            0, window);
      check({4, 2, 64, 16}, DType::kBFloat16, {{450, 1}, {0, 90}, {263, 20}, {333, 3}}, {3, known},
            0, window);
    }
  }
}

// CG-13: a prefix that all rows share is read once.
TEST_P(PlannedAttentionTest, ReadsASharedPrefixOnceForAllRows) {
  for (const DType dtype : kFloatTypes) {
    for (const int32_t prefix : {16, 64, 160, 608}) {
      std::vector<RowSpec> rows;
      for (int32_t i = 0; i < 9; ++i) rows.push_back({prefix + i * 77 % 300, 1});
      check({8, 2, 64, 16}, dtype, rows, {1, true, prefix}, 3);
      for (RowSpec& row : rows) row.query_len = 1 + row.context % 4;
      check({16, 2, 128, 16}, dtype, rows, {4, true, prefix}, 1);
    }
  }
}

// Decodes come first; prompts of any length behind them, some of which begin with it, too.
TEST_P(PlannedAttentionTest, DecodesBesidePromptsReadTheirPrefixOnce_CG13) {
#if defined(REFRAIN_TSAN) || defined(REFRAIN_ASAN)  // slow, and the same code
  const std::vector<int32_t> numbers_of_drafts = {2};
#else
  const std::vector<int32_t> numbers_of_drafts = {0, 2, 6};
#endif
  for (const int32_t drafts : numbers_of_drafts) {
    std::vector<RowSpec> rows;
    for (int32_t i = 0; i < 7; ++i) rows.push_back({608 + i * 77 % 300, 1 + drafts});
    for (const RowSpec& chunk : {RowSpec{608, 3}, {624, 70}, {0, 50}, {300, 1}, {640, 9}})
      rows.push_back(chunk);
    const Planned planned{1 + drafts, true, 608, true};
    check({8, 2, 32, 16}, DType::kFloat32, rows, planned, 3);
    for (const int32_t dim : {32, 64, 128})  // FlashInfer's takes prompts of 64 and 128
      check({8, 2, dim, 16}, DType::kBFloat16, rows, planned, 3);
  }
}

// So many that share_keys shares their own keys out, where the device has it.
TEST_P(PlannedAttentionTest, ManyRowsBehindAPrefix_CG13) {
  const auto rows = [](int32_t count, int32_t prefix, int32_t longest, int32_t drafts) {
    std::vector<RowSpec> rows;
    for (int32_t i = 0; i < count; ++i)
      rows.push_back({prefix + i * 77 % longest, 1 + (drafts == 0 ? 0 : i % (drafts + 1))});
    return rows;
  };
  check({8, 2, 32, 16}, DType::kBFloat16, rows(130, 1024, 37, 0), {1, true, 1024});
  if (harness().table().share_keys == nullptr) return;
  check({16, 8, 32, 16}, DType::kBFloat16, rows(17, 2080, 90, 0), {1, true, 2080, true});
  for (const int32_t prefix : {32, 544}) {
    check({32, 8, 128, 16}, DType::kBFloat16, rows(17, prefix, 200, 0), {1, true, prefix, true}, 3);
    check({8, 8, 64, 32}, DType::kBFloat16, rows(20, prefix, 90, 3), {4, true, prefix, true}, 2);
  }
  // Some of one block of the device alone, and one that many have parts of.
  std::vector<RowSpec> of_all_lengths = rows(40, 64, 30, 0);
  of_all_lengths[7].context = 3900;
  check({16, 4, 64, 16}, DType::kBFloat16, of_all_lengths, {1, true, 64});
}

// Of many decodes some share the prefix, and prompts stand behind them.
TEST_P(PlannedAttentionTest, ManyDecodesBesidePromptsReadTheirPrefixOnce_CG13) {
  const bool shares = harness().table().share_keys != nullptr;  // else many are as few
  for (const int32_t drafts : shares ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{1}) {
    std::vector<RowSpec> rows;
    for (int32_t i = 0; i < 18; ++i) rows.push_back({208 + i * 77 % 300, 1 + drafts});
    for (const RowSpec& chunk : {RowSpec{208, 3}, {100, 1}, {224, 70}, {0, 50}, {300, 1}, {640, 9}})
      rows.push_back(chunk);
    for (const int32_t dim : shares ? std::vector<int32_t>{64, 128} : std::vector<int32_t>{64})
      check({32, 8, dim, 16}, DType::kBFloat16, rows, {1 + drafts, true, 208, true}, 3);
  }
}

// A plan of the step before says less than there is: the last key is missing.
TEST_P(PlannedAttentionTest, APlanOfOtherLengthsGivesOtherResults) {
  AttentionCase before(harness(), {4, 2, 64, 16}, DType::kFloat32, {{300, 1}, {40, 1}});
  AttentionCase now(harness(), {4, 2, 64, 16}, DType::kFloat32, {{301, 1}, {41, 1}});
  before.make_plan(1);
  now.make_plan(1);
  const auto right = now.run(&KernelTable::planned_attention);
  AttentionArgs args = now.args();
  args.planned = before.args().planned;
  harness().table().planned_attention(harness().stream(), args);
  EXPECT_NE(now.output(), right);
}

INSTANTIATE_TEST_SUITE_P(Device, PlannedAttentionTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

TEST(AttentionPlan, SplitsARowByItsOwnLengthAlone) {
  const AttentionPlanShape shape{64, 8, 1, 4};
  std::vector<int32_t> alone(static_cast<size_t>(shape.ints())), among = alone;
  const std::vector<int32_t> one = {1}, context = {999}, tokens = {1, 1, 20},
                             contexts = {999, 5, 40};
  const std::vector<int32_t> slots = {0, 1, 2};
  make_attention_plan(shape, {{slots.data(), 1}, one, context}, alone.data());
  const int32_t units = alone[0];
  ASSERT_EQ(units, 8);
  make_attention_plan(shape, {slots, tokens, contexts}, among.data());
  EXPECT_GT(among[0], units);
  const auto first = alone.begin() + shape.units_at();
  EXPECT_TRUE(std::equal(first, first + units * kUnitInts, among.begin() + shape.units_at()));
}

TEST(AttentionPlan, RowsBehindAPrefixHaveTheirOwnKeysAloneAndShareItsParts) {
  const AttentionPlanShape shape{8, 8, 1, 4};
  std::vector<int32_t> plan(static_cast<size_t>(shape.ints()));
  const std::vector<int32_t> tokens = {1, 1, 1}, contexts = {1100, 1024, 1800};
  const std::vector<int32_t> slots = {0, 1, 2};
  make_attention_plan(shape, {slots, tokens, contexts, 1024, 3}, plan.data());
  const int32_t units = plan[0];
  const auto* unit = reinterpret_cast<const AttentionUnit*>(plan.data() + shape.units_at());
  EXPECT_EQ(units, 2 + 1 + 1 + 2);
  EXPECT_EQ(unit[0].tokens, 3);
  EXPECT_EQ(unit[1].begin, kCascadePartKeys);
  EXPECT_EQ(unit[2].begin, 1024);
  EXPECT_EQ(unit[2].part, 2);
  EXPECT_EQ(plan[kPlanHeader + 3], 3 + 3 + 4);
  EXPECT_EQ(plan[kPlanPrefixUnits], 2);
  EXPECT_EQ(plan[kPlanPrefixParts], 2);
}

TEST(AttentionPlan, OnlyTheFirstRowsReadASharedPrefixOnce) {
  const AttentionPlanShape shape{64, 8, 1, 4};
  std::vector<int32_t> plan(static_cast<size_t>(shape.ints()));
  const std::vector<int32_t> tokens = {1, 1, 40}, contexts = {1100, 1024, 1024};
  const std::vector<int32_t> slots = {0, 1, 2};
  make_attention_plan(shape, {slots, tokens, contexts, 1024, 2}, plan.data());
  const auto* unit = reinterpret_cast<const AttentionUnit*>(plan.data() + shape.units_at());
  EXPECT_EQ(plan[0], 2 + 1 + 1 + 3);
  EXPECT_EQ(plan[kPlanSharedRows], 2);
  EXPECT_EQ(plan[kPlanPrefixKeys], 1024);
  EXPECT_EQ(unit[0].tokens, 2);
  EXPECT_EQ(unit[0].row_tokens, 0);
  EXPECT_EQ(unit[3].begin, 1024);
  EXPECT_EQ(unit[4].begin, 0);
  EXPECT_EQ(unit[4].end, 1024 + 16);
  EXPECT_EQ(unit[4].row_tokens, 40);
  EXPECT_EQ(unit[4].part, -1);
}

TEST(AttentionPlan, OfFlashinferSplitsRowsOfOneTokenAlone) {
  const AttentionPlanShape shape{64, 8, 1, 4, 100};
  const FlashinferPlan at(shape);
  std::vector<int32_t> plan(static_cast<size_t>(shape.ints()));
  const std::vector<int32_t> slots = {3, 0}, ones = {1, 1}, contexts = {999, 5}, more = {1, 20};
  EXPECT_LE(make_flashinfer_plan(shape, {slots, ones, contexts}, plan.data()), shape.ints());
  const int32_t chunk = plan[at.key_chunk], parts = (1000 + chunk - 1) / chunk;
  EXPECT_GT(parts, 1);
  EXPECT_LE(parts, kMaxPlanParts);
  EXPECT_EQ(plan[0], parts + 1);
  EXPECT_EQ(plan[at.page_start], 300);
  EXPECT_EQ(plan[at.page_start + 2], 900) << "the end of a table of nine rows";
  EXPECT_EQ(plan[at.merge_start + 2], parts + 1);
  EXPECT_EQ(plan[at.row + parts], 1);
  make_flashinfer_plan(shape, {slots, more, contexts}, plan.data());
  EXPECT_EQ(plan[0], 1 + 2) << "80 queries are two tiles of 64";
  EXPECT_EQ(plan[at.query_tile + 2], 1);
  EXPECT_EQ(plan[at.out_start + 2], 21);
  EXPECT_GT(plan[at.key_chunk], 1 << 20);
}

}  // namespace
}  // namespace refrain::kernels
