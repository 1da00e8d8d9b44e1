// linear against double precision, and CG-28's ground: a row's bits do not depend on its batch.
#include <cmath>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

struct Case {
  int64_t m, n, k;
  DType in, weight, out;
  bool bias = false, residual = false;
  int64_t extra = 3;  // elements between the rows of the input
};

class LinearTest : public OpsTest {
 protected:
  void check(const Case& c, bool row_major = false) {
    SCOPED_TRACE(testing::Message()
                 << "m " << c.m << " n " << c.n << " k " << c.k << " in " << to_string(c.in)
                 << " weight " << to_string(c.weight) << " out " << to_string(c.out));
    const auto x = random_values(c.m * c.k, c.in, 1);
    const auto w = random_values(c.n * c.k, c.weight, 2);
    const auto bias = random_values(c.n, DType::kFloat32, 3);
    const auto residual = random_values(c.m * c.n, c.out, 4);
    LinearArgs args;
    // Padded rows exist in memory and hold poison: a launch may read them.
    std::vector<float> padded = x;
    padded.resize((c.m + 2) * c.k, std::nanf(""));
    args.in = put_matrix(harness(), padded, c.m + 2, c.k, c.in, c.extra);
    args.weight = row_major ? Weight{put_matrix(harness(), w, c.n, c.k, c.weight).data, c.weight,
                                     WeightLayout::kRowMajor, c.n, c.k}
                            : put_weight(harness(), w, c.n, c.k, c.weight);
    if (c.bias) args.bias = harness().put(bias);
    if (c.residual) {
      std::vector<float> all = residual;
      all.resize((c.m + 2) * c.n, std::nanf(""));
      args.residual = put_matrix(harness(), all, c.m + 2, c.n, c.out);
    }
    args.out = fresh_matrix(harness(), c.m + 2, c.n, c.out, 5);
    args.rows = {static_cast<int32_t>(c.m + 2), put_int(harness(), static_cast<int32_t>(c.m))};
    table().linear(stream(), args);
    std::vector<double> expected(c.m * c.n), tolerance(c.m * c.n);
    for (int64_t r = 0; r < c.m; ++r) {
      for (int64_t i = 0; i < c.n; ++i) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double product = double{x[r * c.k + k]} * w[i * c.k + k];
          sum += product;
          size += std::abs(product);
        }
        if (c.bias) sum += bias[i];
        if (c.residual) sum += residual[r * c.n + i];
        expected[r * c.n + i] = sum;
        tolerance[r * c.n + i] = 2e-6 * size + 1e-6;
      }
    }
    const auto all = get_matrix(harness(), args.out, c.m + 2, c.n);
    expect_close({all.begin(), all.begin() + c.m * c.n}, expected, tolerance, c.out);
    if (harness().writes_dead_rows()) return;
    for (size_t i = c.m * c.n; i < all.size(); ++i) {
      ASSERT_TRUE(std::isnan(all[i])) << "a row beyond the live ones was written";
    }
  }
};

TEST_P(LinearTest, MatchesDoublePrecisionForEveryTypeAndOddSize) {
  for (const DType in : kFloatTypes) {
    for (const DType weight : kFloatTypes) {
      for (const DType out : kFloatTypes) {
        for (const int64_t m : {1, 2, 5, 6, 7, 13, 33}) check({m, 83, 50, in, weight, out});
        check({3, 1, 2, in, weight, out, true, false});
        check({4, 17, 32, in, weight, out, false, true});
        check({9, 160, 64, in, weight, out, true, true});
        check({50, 118, 300, in, weight, out, true, true});
      }
    }
  }
}

TEST_P(LinearTest, TakesAnOddNumberOfColumnsInFloat32) {
  check({5, 21, 37, DType::kFloat32, DType::kFloat32, DType::kFloat32});
  check({5, 21, 37, DType::kBFloat16, DType::kFloat32, DType::kBFloat16});
  check({40, 21, 301, DType::kBFloat16, DType::kFloat32, DType::kBFloat16});
}

TEST_P(LinearTest, TakesRowMajorWeights) {
  for (const DType weight : kFloatTypes) {
    check({5, 21, 37, DType::kBFloat16, weight, DType::kFloat32, true, true}, true);
  }
}

// Rows and columns as the fast kernels of a device want them: aligned, many, few, not quite a tile.
TEST_P(LinearTest, MatchesDoublePrecisionForAlignedBFloat16) {
  const DType bf16 = DType::kBFloat16;
  for (const int64_t m : {1, 2, 3, 6, 7, 14, 31, 62}) {  // and two dead rows
    for (const int64_t k : {8, 32, 72, 136, 1032}) {
      check({m, 160, k, bf16, bf16, bf16, false, false, 0});
      check({m, 83, k, bf16, bf16, DType::kFloat32, true, false, 8});
      check({m, 96, k, bf16, bf16, bf16, true, true, 0});
    }
    check({m, 8500, 72, bf16, bf16, bf16, false, true, 0});
  }
  check({1, 40, 14336, bf16, bf16, bf16, false, true, 0});
}

TEST_P(LinearTest, AddsTheResidualInPlace) {
  const auto x = random_values(3 * 32, DType::kBFloat16, 1);
  const auto w = random_values(40 * 32, DType::kBFloat16, 2);
  const auto residual = random_values(3 * 40, DType::kBFloat16, 3);
  LinearArgs args;
  args.in = put_matrix(harness(), x, 3, 32, DType::kBFloat16);
  args.weight = put_weight(harness(), w, 40, 32, DType::kBFloat16);
  args.residual = put_matrix(harness(), residual, 3, 40, DType::kBFloat16);
  args.out = fresh_matrix(harness(), 3, 40, DType::kBFloat16);
  args.rows = {3, nullptr};
  table().linear(stream(), args);
  const auto apart = get_matrix(harness(), args.out, 3, 40);
  args.out = args.residual;
  table().linear(stream(), args);
  expect_same_bits(get_matrix(harness(), args.out, 3, 40), apart);
}

// CG-28: bitwise, for every M from 1 to 33 and every place in the batch, NaN rows beside included.
TEST_P(LinearTest, GivesARowTheSameBitsInEveryBatch) {
  for (const DType in : kFloatTypes) {
    for (const DType weight : kFloatTypes) {
      const int64_t n = 150, k = 290;
      const auto row = random_values(k, in, 5);
      const Weight packed = put_weight(harness(), random_values(n * k, weight, 6), n, k, weight);
      std::vector<float> alone;
      for (int64_t m = 1; m <= 33; ++m) {
        const int64_t place = m - 1, other = m / 2;
        std::vector<float> x(m * k, std::nanf(""));
        for (const int64_t r : {place, other}) {
          std::copy(row.begin(), row.end(), x.begin() + r * k);
        }
        LinearArgs args;
        args.in = put_matrix(harness(), x, m, k, in);
        args.weight = packed;
        args.out = fresh_matrix(harness(), m, n, DType::kFloat32);
        args.rows = {static_cast<int32_t>(m), nullptr};
        table().linear(stream(), args);
        const auto out = get_matrix(harness(), args.out, m, n);
        if (m == 1) alone = out;
        for (const int64_t r : {place, other}) {
          expect_same_across_keys(harness(), {out.begin() + r * n, out.begin() + (r + 1) * n},
                                  alone);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LinearTest, testing::ValuesIn(all_harnesses()), choice_name);

TEST(LinearHost, GivesTheSameBitsForEveryNumberOfThreads) {
  for (const HarnessChoice& choice : host_harnesses()) {
    const HostIsa isa = *parse_host_isa(choice.name.substr(5));
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 80}, {40, 80}, {17, 33}}) {
      std::vector<float> one;
      for (const int threads : {1, 2, 3, 5, 16}) {
        const auto harness = make_host_harness(isa, threads);
        LinearArgs args;
        args.in = put_matrix(*harness, random_values(m * 64, DType::kBFloat16, 1), m, 64,
                             DType::kBFloat16);
        args.weight = put_weight(*harness, random_values(n * 64, DType::kBFloat16, 2), n, 64,
                                 DType::kBFloat16);
        args.out = fresh_matrix(*harness, m, n, DType::kFloat32);
        args.rows = {static_cast<int32_t>(m), nullptr};
        harness->table().linear(harness->stream(), args);
        const auto out = get_matrix(*harness, args.out, m, n);
        if (threads == 1) one = out;
        expect_same_bits(out, one);
        for (const float value : out) ASSERT_FALSE(std::isnan(value));
      }
    }
  }
}

}  // namespace
}  // namespace refrain::kernels
