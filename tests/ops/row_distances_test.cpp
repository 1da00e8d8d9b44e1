// row_distances against double precision, and what it makes of values that are not finite (CG-41).
#include <cmath>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

class RowDistancesTest : public OpsTest {
 protected:
  std::vector<RowDistance> distances(const std::vector<float>& got,
                                     const std::vector<float>& expected, int32_t rows, int32_t cols,
                                     DType dtype, int64_t extra = 0, int32_t live = -1) {
    RowDistancesArgs args;
    args.got = put_matrix(harness(), got, rows, cols, dtype, extra);
    args.expected = put_matrix(harness(), expected, rows, cols, dtype, 2 * extra);
    args.out = harness().fresh<RowDistance>(static_cast<size_t>(rows));
    args.cols = cols;
    args.rows = {rows, live < 0 ? nullptr : put_int(harness(), live)};
    table().row_distances(stream(), args);
    return harness().get(args.out, static_cast<size_t>(rows));
  }
};

TEST_P(RowDistancesTest, TheWorstOfEachRowAsInDoublePrecision) {
  struct Shape {
    int32_t rows, cols;
    int64_t extra;
  };
  for (const DType dtype : kFloatTypes) {
    for (const Shape& s : {Shape{1, 1, 0}, Shape{3, 7, 1}, Shape{5, 64, 0}, Shape{512, 1024, 0},
                           Shape{2, 20011, 5}, Shape{9, 4096, 8}}) {
      const auto count = static_cast<size_t>(s.rows * s.cols);
      const std::vector<float> got = random_values(count, dtype, 1, 3.0f);
      std::vector<float> expected = got;
      // A few elements a row differ, and not the same ones in each.
      const std::vector<float> other = random_values(count, dtype, 2, 3.0f);
      for (size_t i = 0; i < count; i += 13) expected[i] = other[i];
      const std::vector<RowDistance> found =
          distances(got, expected, s.rows, s.cols, dtype, s.extra);
      for (int32_t r = 0; r < s.rows; ++r) {
        double apart = 0, largest = 0;
        for (int32_t c = 0; c < s.cols; ++c) {
          const auto at = static_cast<size_t>(r * s.cols + c);
          apart = std::max(apart, std::abs(double{got[at]} - double{expected[at]}));
          largest = std::max(largest, std::abs(double{expected[at]}));
        }
        const auto& row = found[static_cast<size_t>(r)];
        EXPECT_FLOAT_EQ(row.apart, static_cast<float>(apart)) << s.cols << " columns, row " << r;
        EXPECT_EQ(row.largest, static_cast<float>(largest)) << s.cols << " columns, row " << r;
        EXPECT_FLOAT_EQ(row.worst(), static_cast<float>(apart / largest));
      }
    }
  }
}

// One place of a row is enough, wherever it stands: first, last, at the ends of a thread's part.
TEST_P(RowDistancesTest, OneDifferentValueIsFoundInEveryPlace) {
  for (const int32_t cols : {17, 4100}) {
    const std::vector<float> expected(static_cast<size_t>(cols), 2.0f);
    for (int32_t at = 0; at<cols; at += cols> 100 ? 57 : 1) {
      std::vector<float> got = expected;
      got[static_cast<size_t>(at)] = -1.0f;
      const RowDistance found = distances(got, expected, 1, cols, DType::kBFloat16)[0];
      EXPECT_EQ(found.apart, 3.0f) << at << " of " << cols;
      EXPECT_EQ(found.worst(), 1.5f);
    }
  }
}

TEST_P(RowDistancesTest, WhatIsNotFiniteIsTheSameOrInfinitelyFar) {
  const float nan = NAN, inf = INFINITY;
  struct Case {
    float got, expected, worst;
  };
  const Case cases[] = {{nan, nan, 0},    {-nan, nan, 0},  {inf, inf, 0},    {-inf, -inf, 0},
                        {nan, 1, inf},    {1, nan, inf},   {inf, 1, inf},    {1, inf, inf},
                        {inf, -inf, inf}, {nan, inf, inf}, {0.0f, -0.0f, 0}, {1, 0, 0.25f}};
  for (const DType dtype : kFloatTypes) {
    for (const Case& c : cases) {
      const RowDistance found = distances({4, c.got, -4}, {4, c.expected, -4}, 1, 3, dtype)[0];
      EXPECT_EQ(found.worst(), c.worst) << c.got << " for " << c.expected;
      EXPECT_EQ(found.largest, 4) << "infinity is no magnitude to measure by";
    }
  }
  EXPECT_EQ(distances({0, 1}, {0, 0}, 1, 2, DType::kFloat32)[0].worst(), inf)
      << "nothing beside it";
  EXPECT_EQ(distances({0, 0}, {0, -0.0f}, 1, 2, DType::kFloat32)[0].worst(), 0);
}

TEST_P(RowDistancesTest, RowsBeyondTheLiveOnesAreLeftAlone) {
  const std::vector<float> zeros(40, 0.0f), ones(40, 1.0f);
  const std::vector<RowDistance> found = distances(zeros, ones, 4, 10, DType::kFloat32, 0, 2);
  for (size_t row = 0; row < 4; ++row) {
    if (row < 2) {
      EXPECT_EQ(found[row].worst(), 1);
    } else {
      EXPECT_TRUE(std::isnan(found[row].apart));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, RowDistancesTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
