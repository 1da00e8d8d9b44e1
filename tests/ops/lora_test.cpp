// LoRA's products: against double precision; rows without an adapter keep their bits, and what a
// row gets depends on nothing beside it.
#include <tuple>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kPlaces = 3, kMaxRank = 8;

class LoraTest : public OpsTest {
 protected:
  // Three parts of 16, 8 and 9 columns, the middle one left alone by the adapter at place 1.
  struct Case {
    DType dtype;
    int64_t rows, cols;
    std::vector<int32_t> adapter;
    std::vector<int32_t> ends = {16, 24, 33};
    std::vector<int32_t> ranks = {8, 8, 8, 3, 0, 3, 5, 5, 5};
    std::vector<float> in{}, a{}, b{}, out{};

    int64_t width() const { return std::ssize(ends) * kMaxRank; }
    int64_t out_cols() const { return ends.back(); }
    void fill() {
      in = random_values(static_cast<size_t>(rows * cols), dtype, 1);
      a = random_values(static_cast<size_t>(kPlaces * width() * cols), dtype, 2);
      b = random_values(static_cast<size_t>(kPlaces * kMaxRank * out_cols()), dtype, 3);
      out = random_values(static_cast<size_t>(rows * out_cols()), dtype, 4);
    }
    int32_t rank(int64_t row, size_t part) const {
      const int32_t place = adapter[static_cast<size_t>(row)];
      return place < 0 ? 0 : ranks[static_cast<size_t>(place) * ends.size() + part];
    }
    double shrunk(int64_t row, size_t part, int64_t j) const {
      const int64_t line =
          (adapter[static_cast<size_t>(row)] * std::ssize(ends) + static_cast<int64_t>(part)) *
              kMaxRank +
          j;
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c)
        sum += double{in[static_cast<size_t>(row * cols + c)]} *
               a[static_cast<size_t>(line * cols + c)];
      return sum;
    }
    double expected(int64_t row, int64_t col) const {
      size_t part = 0;
      while (col >= ends[part]) ++part;
      double sum = out[static_cast<size_t>(row * out_cols() + col)];
      for (int64_t j = 0; j < rank(row, part); ++j) {
        const int64_t at = (col * kPlaces + adapter[static_cast<size_t>(row)]) * kMaxRank + j;
        sum += shrunk(row, part, j) * b[static_cast<size_t>(at)];
      }
      return sum;
    }
  };

  // As lora_rows makes them; of each row by itself none.
  static std::vector<LoraGroup> groups_of(const std::vector<int32_t>& adapter) {
    std::vector<LoraGroup> groups(1);
    for (int32_t place = 0; place < kPlaces && std::ssize(adapter) > kLoraFewRows; ++place) {
      for (size_t row = 0; row < adapter.size(); ++row) {
        if (adapter[row] != place) continue;
        LoraGroup* last = &groups.back();
        if (groups.size() == 1 || last->place != place || last->count == LoraGroup::kRows)
          last = &groups.emplace_back(LoraGroup{.place = place, .count = 0, .rows = {}});
        last->rows[last->count++] = static_cast<int32_t>(row);
      }
    }
    groups[0].count = static_cast<int32_t>(groups.size() - 1);
    groups.resize(std::max(groups.size(), adapter.size() * LoraGroup::kPerRow));
    return groups;
  }

  std::vector<float> run(const Case& c, int32_t live) {
    LoraPlaces places;
    places.ranks = harness().put(c.ranks);
    places.rank_stride = places.parts = static_cast<int32_t>(c.ends.size());
    places.max_rank = kMaxRank;
    places.count = kPlaces;
    std::vector<int32_t> of_rows = c.adapter;  // beyond the live ones there is none
    std::fill(of_rows.begin() + live, of_rows.end(), -1);
    const auto* adapter = harness().put(of_rows);
    const auto* groups = harness().put(groups_of(of_rows));
    const Rows rows{static_cast<int32_t>(c.rows), put_int(harness(), live)};
    LoraShrinkArgs shrink;
    shrink.in = put_matrix(harness(), c.in, c.rows, c.cols, c.dtype, 0);
    shrink.adapter = adapter;
    shrink.groups = groups;
    shrink.a = put_matrix(harness(), c.a, kPlaces * c.width(), c.cols, c.dtype).data;
    shrink.places = places;
    shrink.out = harness().fresh<float>(static_cast<size_t>(c.rows * c.width()));
    shrink.cols = static_cast<int32_t>(c.cols);
    shrink.rows = rows;
    table().lora_shrink(stream(), shrink);
    LoraExpandArgs expand;
    expand.in = shrink.out;
    expand.adapter = adapter;
    expand.groups = groups;
    expand.b = put_matrix(harness(), c.b, c.out_cols(), kPlaces * kMaxRank, c.dtype).data;
    expand.places = places;
    std::ranges::copy(c.ends, expand.part_end);
    expand.out = put_matrix(harness(), c.out, c.rows, c.out_cols(), c.dtype, 3);
    expand.rows = rows;
    table().lora_expand(stream(), expand);
    return get_matrix(harness(), expand.out, c.rows, c.out_cols());
  }
};

TEST_P(LoraTest, AddsWhatEachRowsAdapterAdds) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : {16, 40, 200}) {
      Case c{.dtype = dtype, .rows = 6, .cols = cols, .adapter = {2, -1, 0, 1, 1, 2}};
      c.fill();
      const auto got = run(c, 5);
      std::vector<double> expected, tolerance;
      for (int64_t row = 0; row < 5; ++row) {
        for (int64_t col = 0; col < c.out_cols(); ++col) {
          expected.push_back(c.expected(row, col));
          tolerance.push_back(2e-4);
        }
      }
      expect_close({got.begin(), got.begin() + std::ssize(expected)}, expected, tolerance, dtype);
      for (const int64_t row : {1, 5}) {  // without an adapter; beyond the live ones
        for (int64_t col = 0; col < c.out_cols(); ++col) {
          const auto at = static_cast<size_t>(row * c.out_cols() + col);
          ASSERT_EQ(got[at], c.out[at]) << "row " << row;
        }
      }
    }
  }
}

// Many rows of each adapter, in any order, of widths that are read eight columns at a time.
TEST_P(LoraTest, RowsThatShareAnAdapterAreComputedTogether) {
  for (const auto& [dtype, rows, live] :
       {std::tuple(DType::kFloat32, 150, 141), std::tuple(DType::kBFloat16, 150, 141),
        std::tuple(DType::kBFloat16, 2200, 2150), std::tuple(DType::kBFloat16, 20, 19)}) {
    Case c{.dtype = dtype, .rows = rows, .cols = 64, .adapter = {}, .ends = {16, 24, 48}};
    for (int32_t row = 0; row < c.rows; ++row)
      c.adapter.push_back(row < 70 ? row * 7 % 11 % 4 - 1 : 2 - row % 3 / 2);
    c.fill();
    const auto got = run(c, live);
    std::vector<double> expected;
    for (int64_t row = 0; row < live; ++row) {
      for (int64_t col = 0; col < c.out_cols(); ++col) expected.push_back(c.expected(row, col));
    }
    expect_close({got.begin(), got.begin() + std::ssize(expected)}, expected,
                 std::vector<double>(expected.size(), 2e-4), dtype);
    for (size_t at = expected.size(); at < got.size(); ++at) ASSERT_EQ(got[at], c.out[at]);
  }
}

TEST_P(LoraTest, ARowsBitsDoNotDependOnItsNeighbours) {
  for (const DType dtype : kFloatTypes) {
    Case many{.dtype = dtype, .rows = 7, .cols = 72, .adapter = {0, 2, -1, 1, 2, 2, 0}};
    many.fill();
    const auto together = run(many, 7);
    for (int64_t row = 0; row < many.rows; ++row) {
      Case one = many;
      one.rows = 1;
      one.adapter = {many.adapter[static_cast<size_t>(row)]};
      one.in.assign(many.in.begin() + row * many.cols, many.in.begin() + (row + 1) * many.cols);
      one.out.assign(many.out.begin() + row * many.out_cols(),
                     many.out.begin() + (row + 1) * many.out_cols());
      expect_same_bits(run(one, 1), {together.begin() + row * many.out_cols(),
                                     together.begin() + (row + 1) * many.out_cols()});
    }
  }
}

// Places of 10 rows, of which this rank has the vocabulary's tokens 20 to 28.
TEST_P(LoraTest, AnEmbeddingsRowsTakeTheirTokensColumnOfTheirAdapter) {
  for (const DType dtype : kFloatTypes) {
    constexpr int32_t kRows = 10, kFirst = 20;
    const std::vector<int32_t> ranks = {9, 8, 9, 3, 9, 0};  // of the second of two modules' columns
    const std::vector<int32_t> ids = {20, 27, 19, 22, 28, 25, 21}, adapter = {0, 1, 1, -1, 0, 2, 1};
    const std::vector<float> a = random_values(size_t{kPlaces} * kRows * kMaxRank, dtype, 5);
    const std::vector<float> before(ids.size() * kMaxRank, 77.0f);
    LoraEmbedArgs args;
    args.ids = harness().put(ids);
    args.adapter = harness().put(adapter);
    args.a = put_matrix(harness(), a, int64_t{kPlaces} * kMaxRank, kRows, dtype).data;
    args.dtype = dtype;
    args.places.ranks = harness().put(ranks) + 1;
    args.places.rank_stride = 2;
    args.places.max_rank = kMaxRank;
    args.places.count = kPlaces;
    args.vocab_rows = kRows;
    args.vocab_begin = kFirst;
    args.vocab_end = 28;
    args.out = harness().put(before);
    args.rows = {static_cast<int32_t>(ids.size()), put_int(harness(), 6)};
    table().lora_embed(stream(), args);
    const std::vector<float> got = harness().get(args.out, before.size());
    for (size_t row = 0; row < ids.size(); ++row) {
      const int32_t place = row < 6 ? adapter[row] : -1;
      const int32_t rank = place < 0 ? 0 : ranks[static_cast<size_t>(2 * place + 1)];
      const bool here = ids[row] >= kFirst && ids[row] < 28;
      for (int32_t j = 0; j < kMaxRank; ++j) {
        const int32_t at = place * kRows * kMaxRank + (ids[row] - kFirst) * rank + j;
        const float expected = j >= rank ? 77.0f : here ? a[static_cast<size_t>(at)] : 0.0f;
        ASSERT_EQ(got[row * kMaxRank + static_cast<size_t>(j)], expected)
            << "row " << row << ", rank " << j;
      }
    }
  }
}

TEST_P(LoraTest, EveryTokenAndLogitRowHasTheAdapterOfItsRequestsSlot) {
  std::vector<SlotParams> params(4);
  params[0].adapter = 2;
  params[2].adapter = 0;
  const std::vector<int32_t> starts = {0, 3, 4, 9, 9, 9}, slots = {2, 1, 0, 3, 3};
  LoraRowsArgs args;
  args.query_start = harness().put(starts);
  args.row_slot = harness().put(slots);
  args.sample_slot = harness().put(std::vector<int32_t>{2, 2, 1, 0, 3, 3});
  args.params = harness().put(params);
  args.of_tokens = harness().fresh<int32_t>(12);
  args.of_samples = harness().fresh<int32_t>(6);
  args.token_groups = harness().fresh<LoraGroup>(12 * LoraGroup::kPerRow);
  args.sample_groups = harness().fresh<LoraGroup>(6 * LoraGroup::kPerRow);
  args.tokens = {12, put_int(harness(), 9)};
  args.reqs = {5, put_int(harness(), 3)};
  args.samples = {6, put_int(harness(), 4)};
  table().lora_rows(stream(), args);
  EXPECT_EQ(harness().get(args.of_tokens, 12),
            (std::vector<int32_t>{0, 0, 0, -1, 2, 2, 2, 2, 2, -1, -1, -1}));
  EXPECT_EQ(harness().get(args.of_samples, 6), (std::vector<int32_t>{0, 0, -1, 2, -1, -1}));
  EXPECT_EQ(harness().get(args.token_groups, 1)[0].count, 0) << "so few are taken one by one";
  EXPECT_EQ(harness().get(args.sample_groups, 1)[0].count, 0);
}

// Requests of 1 to 4 tokens each whose slots have adapters in no order.
TEST_P(LoraTest, ManyRowsAreGroupedByPlaceInTheirOrder) {
  for (const int32_t live : {65, 100, 1500, 3000}) {
    std::vector<SlotParams> params(40);
    for (size_t slot = 0; slot < params.size(); ++slot)
      params[slot].adapter = static_cast<int32_t>(slot * 7 % (kPlaces + 1)) - 1;
    std::vector<int32_t> starts = {0}, slots;
    while (starts.back() < live) {
      slots.push_back(static_cast<int32_t>(slots.size() * 11 % params.size()));
      starts.push_back(std::min(live, starts.back() + 1 + slots.back() % 4));
    }
    const auto reqs = static_cast<int32_t>(slots.size()), padded = live + 7;
    const auto room = static_cast<size_t>(padded) * LoraGroup::kPerRow;
    const Rows samples{reqs, put_int(harness(), reqs)};
    LoraRowsArgs args;
    args.query_start = harness().put(starts);
    args.row_slot = args.sample_slot = harness().put(slots);
    args.params = harness().put(params);
    args.of_tokens = harness().fresh<int32_t>(static_cast<size_t>(padded));
    args.of_samples = harness().fresh<int32_t>(static_cast<size_t>(reqs));
    args.token_groups = harness().fresh<LoraGroup>(room);
    args.sample_groups = harness().fresh<LoraGroup>(room);
    args.tokens = {padded, put_int(harness(), live)};
    args.reqs = args.samples = samples;
    table().lora_rows(stream(), args);
    for (const bool tokens : {true, false}) {
      const auto adapter =
          harness().get(tokens ? args.of_tokens : args.of_samples, tokens ? padded : reqs);
      const auto got = harness().get(tokens ? args.token_groups : args.sample_groups, room);
      const auto expected = groups_of(adapter);
      ASSERT_EQ(got[0].count, expected[0].count) << live << " tokens";
      for (int32_t i = 1; i <= got[0].count; ++i) {
        const LoraGroup &mine = got[static_cast<size_t>(i)],
                        &its = expected[static_cast<size_t>(i)];
        ASSERT_EQ(mine.place, its.place) << "group " << i << " of " << live << " tokens";
        ASSERT_EQ(std::vector(mine.rows, mine.rows + mine.count),
                  std::vector(its.rows, its.rows + its.count));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LoraTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
