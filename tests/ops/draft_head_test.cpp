// What a draft head asks beyond a draft model: the tokens after a step's, columns side by side, and
// logits of a smaller vocabulary.
#include <limits>
#include <numeric>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

using Ints = std::vector<int32_t>;

class DraftHeadTest : public OpsTest {};

TEST_P(DraftHeadTest, NextTokensAreThoseThatTheSlotKnows_CG40) {
  constexpr int32_t kCols = 8, kPadded = 9;
  NextTokensArgs args;
  args.history = harness().put(Ints{10, 11, 12, 13, 14, 15, 16, 17,    // slot 0
                                    20, 21, 22, 23, 24, 25, 26, 27});  // slot 1
  args.history_cols = kCols;
  // Slot 1 at positions 2 to 4; slot 0 at 6 and at the last one, after which nothing is kept.
  args.positions = harness().put(Ints{2, 3, 4, 6, 7, 0, 0, 0, 0});
  args.query_start = harness().put(Ints{0, 3, 5, 5});
  args.row_slot = harness().put(Ints{1, 0, 1});
  args.out = harness().fresh<int32_t>(kPadded);
  args.tokens = {kPadded, nullptr};
  args.rows = {3, harness().put(Ints{2})};
  table().next_tokens(stream(), args);
  EXPECT_EQ(harness().get(args.out, kPadded), (Ints{23, 24, 25, 17, 0, 0, 0, 0, 0}));
}

TEST_P(DraftHeadTest, ConcatPutsColumnsSideBySide_CG40) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::vector<int32_t>& widths :
         std::vector<std::vector<int32_t>>{{16}, {64, 64}, {24, 8, 40}, {7, 3}, {2100, 16, 2}}) {
      constexpr int64_t kRows = 5, kLive = 3;
      ConcatArgs args;
      int64_t all = 0;
      std::vector<std::vector<float>> parts;
      for (size_t i = 0; i < widths.size(); ++i) {
        parts.push_back(random_values(static_cast<size_t>(kRows * widths[i]), dtype,
                                      static_cast<uint32_t>(i + 1)));
        args.parts[i] = put_matrix(harness(), parts[i], kRows, widths[i], dtype, 8);
        args.cols[i] = widths[i];
        all += widths[i];
      }
      args.out = fresh_matrix(harness(), kRows, all, dtype, 8);
      args.rows = {kRows, harness().put(Ints{kLive})};
      table().concat(stream(), args);
      const std::vector<float> out = get_matrix(harness(), args.out, kLive, all);
      std::vector<float> expected;
      for (int64_t row = 0; row < kLive; ++row)
        for (size_t i = 0; i < widths.size(); ++i)
          expected.insert(expected.end(), parts[i].begin() + row * widths[i],
                          parts[i].begin() + (row + 1) * widths[i]);
      expect_same_bits(out, expected);
    }
  }
}

TEST_P(DraftHeadTest, MapLogitsPutsEachTokenWhereItIsInTheVocabulary_CG40) {
  constexpr int32_t kSmall = 5, kVocab = 300;
  constexpr int64_t kRows = 4, kLive = 3;
  const Ints targets = {7, 3, 299, 0, 150};
  std::vector<float> offsets;
  for (int32_t i = 0; i < kSmall; ++i)
    offsets.push_back(static_cast<float>(targets[static_cast<size_t>(i)] - i));
  const std::vector<float> logits = random_values(kRows * kSmall, DType::kFloat32, 4);
  MapLogitsArgs args;
  args.in = put_matrix(harness(), logits, kRows, kSmall, DType::kFloat32, 3);
  args.offset = harness().put(offsets);
  args.out = fresh_matrix(harness(), kRows, kVocab, DType::kFloat32, 4);
  args.small = kSmall;
  args.vocab = kVocab;
  args.rows = {kRows, harness().put(Ints{kLive})};
  table().map_logits(stream(), args);
  const std::vector<float> out = get_matrix(harness(), args.out, kLive, kVocab);
  std::vector<float> expected(kLive * kVocab, -std::numeric_limits<float>::infinity());
  for (size_t row = 0; row < kLive; ++row)
    for (size_t i = 0; i < kSmall; ++i)
      expected[row * kVocab + static_cast<size_t>(targets[i])] = logits[row * kSmall + i];
  expect_same_bits(out, expected);
}

INSTANTIATE_TEST_SUITE_P(Device, DraftHeadTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
