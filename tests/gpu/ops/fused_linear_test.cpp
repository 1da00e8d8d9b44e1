// fused_linear, which only some devices have, against double precision.
#include <cmath>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

struct FusedCase {
  int32_t m;
  int64_t n, k;  // of the weight
  bool norm = false, delta = false, silu = false, bias = false, residual = false;
  DType out = kBf16;
  bool unit_norm = false;  // without `norm`
};

class FusedLinearTest : public OpsTest {
 protected:
  void check(const FusedCase& c) {
    check(c, c.m);
    if (c.m < table().few_rows.max_rows &&
        (!c.norm || (c.m + 1) * c.k <= table().few_rows.max_norm_elements)) {
      check(c, c.m + 1);
    };
  }
  void check(const FusedCase& c, int32_t padded) {
    SCOPED_TRACE(testing::Message() << "m " << c.m << " of " << padded << " n " << c.n << " k "
                                    << c.k << " norm " << c.norm << " delta " << c.delta << " silu "
                                    << c.silu << " bias " << c.bias << " residual " << c.residual
                                    << " out " << to_string(c.out) << " unit norm " << c.unit_norm);
    const int64_t cols = c.silu ? c.n / 2 : c.n;
    const auto put = [&](const std::vector<float>& live, int64_t width, DType dtype) {
      std::vector<float> all = live;
      all.resize(padded * width, std::nanf(""));  // padded rows hold poison
      return put_matrix(harness(), all, padded, width, dtype);
    };
    const auto x = random_values(c.m * c.k, kBf16, 1), w = random_values(c.n * c.k, kBf16, 2);
    const auto delta = random_values(c.m * c.k, kBf16, 3);
    const auto norm = random_values(c.k, DType::kFloat32, 4);
    const auto bias = random_values(cols, DType::kFloat32, 5);
    const auto residual = random_values(c.m * cols, c.out, 6);
    FusedLinearArgs args;
    args.linear.in = put(x, c.k, kBf16);
    args.linear.weight = put_weight(harness(), w, c.n, c.k, kBf16);
    args.linear.out = fresh_matrix(harness(), padded, cols, c.out);
    args.linear.rows = {padded, put_int(harness(), c.m)};
    if (c.bias) args.linear.bias = harness().put(bias);
    if (c.residual) args.linear.residual = put(residual, cols, c.out);
    if (c.norm) args.norm = harness().put(norm);
    if (c.delta) {
      args.delta = put(delta, c.k, kBf16);
      args.sum_out = fresh_matrix(harness(), padded, c.k, kBf16);
    }
    args.silu_mul = c.silu;
    args.unit_norm = c.unit_norm;
    if (c.unit_norm) args.norm = harness().put(std::vector<float>(c.k, 1.0f));
    table().fused_linear(stream(), args);

    std::vector<double> expected, tolerance;
    std::vector<float> sums(c.m * c.k);
    for (int32_t r = 0; r < c.m; ++r) {
      std::vector<double> input(c.k);
      double row_squares = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        const int64_t at = r * c.k + i;
        sums[at] = c.delta ? round_to(x[at] + delta[at], kBf16) : x[at];
        row_squares += double{sums[at]} * sums[at];
        input[i] = c.norm ? round_to(sums[at] * norm[i], kBf16) : sums[at];
      }
      const double scale = c.norm || c.unit_norm
                               ? 1 / std::sqrt(row_squares / static_cast<double>(c.k) + args.eps)
                               : 1;
      const auto dot = [&](int64_t row, double& size) {
        double sum = 0;
        for (int64_t i = 0; i < c.k; ++i) {
          sum += input[i] * w[row * c.k + i];
          size += std::abs(input[i] * w[row * c.k + i]);
        }
        size *= scale;
        return sum * scale;
      };
      for (int64_t i = 0; i < cols; ++i) {
        double size = 0, up_size = 0;
        double value = dot(i, size);
        if (c.silu) {
          const double up = dot(cols + i, up_size);
          size = size * std::abs(up) + up_size * std::abs(value);
          value = value / (1 + std::exp(-value)) * up;
        }
        if (c.bias) value += bias[i];
        if (c.residual) value += residual[r * cols + i];
        expected.push_back(value);
        tolerance.push_back(3e-6 * size + 1e-6);
      }
    }
    auto out = get_matrix(harness(), args.linear.out, padded, cols);
    out.resize(c.m * cols);
    expect_close(out, expected, tolerance, c.out);
    if (!c.delta) return;
    auto sum_out = get_matrix(harness(), args.sum_out, padded, c.k);
    sum_out.resize(c.m * c.k);
    expect_same_bits(sum_out, sums);
  }
};

TEST_P(FusedLinearTest, MoreRowsThanFewMatchDoublePrecision) {
  if (table().fused_linear == nullptr) GTEST_SKIP() << "this device has no such op";
  const int32_t few = table().few_rows.max_rows, most = table().few_rows.max_plain_rows;
  ASSERT_GT(most, few);
  for (const int32_t m : {few + 1, 8, 9, 16, 17, 24, 32, 33, 40, 48, 56, 64, 65, 72, most}) {
    for (const int64_t k : {192, 256, 320, 1088}) {
      check({m, 40, k}, std::min(m + 7, most));
      check({m, 83, k, false, false, false, true, true}, m);
      check({m, 200, k, false, false, false, false, true, DType::kFloat32}, most);
      check({m, 32, k, false, false, true}, std::min(m + 1, most));
      check({m, 96, k, false, false, true}, m);
      check({m, 2080, k, false, false, true}, most);
    }
    check({m, 128, 4160, false, false, false, false, true}, most);
    check({m, 21120, 192}, m);  // several tiles a cluster
    check({m, 21120, 192, false, false, true}, m);
  }
  // Few of many rows live.
  for (const int32_t live : {0, 1, 2, 3}) {
    for (const int32_t padded : {few + 1, 16, 32, 40, most}) {
      check({live, 200, 320, false, false, false, true, true}, padded);
      check({live, 320, 320, false, false, true}, padded);
    }
  }
}

// linear_silu.cu: one block or two for the rows, tiles of every size, several of a block, fewer
// chunks of K than stages and more.
TEST_P(FusedLinearTest, SiluOfManyRowsMatchesDoublePrecision) {
  if (table().fused_linear == nullptr) GTEST_SKIP() << "this device has no such op";
  const FewRows& device = table().few_rows;
  const int32_t least = device.max_plain_rows + 1, most = device.max_silu_rows;
  ASSERT_GT(most, least);
  for (const int32_t rows : {1, least, 128, most}) EXPECT_TRUE(device.fuses_silu(rows)) << rows;
  for (const int32_t rows : {129, 192, most + 1}) EXPECT_FALSE(device.fuses_silu(rows)) << rows;
  const auto silu = [this](int32_t m, int64_t n, int64_t k, int32_t padded) {
    check({m, n, k, false, false, true}, padded);
  };
  for (const int32_t m : {least, 100, 127, 128, 129, 200, 255, most}) {
    for (const int64_t k : {64, 192, 1088}) {
      silu(m, 32, k, m);
      silu(m, 96, k, std::min(m + 7, most));
    }
    silu(m, 2080, 320, most);
  }
  for (const int64_t n : {14816, 19000, 21120, 25344, 29568, 40000}) {
    silu(least, n / 32 * 32, 128, least);
    silu(130, n / 64 * 32, 128, 131);
    silu(3, n / 32 * 32, 192, 200);
  }
  for (const int32_t live : {0, 1, 2, 3, 64, 129})
    for (const int32_t padded : {least, 128, 130, most})
      if (live <= padded) silu(live, 320, 320, padded);
}

// linear_best.cu: the best of each row over all blocks, one or two for the rows, tiles of every
// size, several of a block. Of equal logits the first is the best, NaN never is, nor is a column
// that is no token, and the logits are written only where they are asked for.
TEST_P(FusedLinearTest, TheBestOfARowIsTheFirstOfItsGreatestLogits) {
  const FewRows& device = table().few_rows;
  if (device.best_parts == 0) GTEST_SKIP() << "this device has no such op";
  const auto check = [&](int32_t live, int32_t padded, int64_t n, int64_t k, bool writes,
                         int64_t first = 0, int64_t padding = 0) {
    SCOPED_TRACE(testing::Message() << live << " of " << padded << " rows, " << n << " of " << k
                                    << ", writes " << writes << ", tokens from " << first);
    auto x = random_values(padded * k, kBf16, 1), w = random_values(n * k, kBf16, 2);
    for (int64_t row = n / 2; row < n; ++row)  // each logit twice, the second time in another tile
      std::copy_n(w.begin() + (row - n / 2) * k, k, w.begin() + row * k);
    for (int64_t i = (n - padding) * k; i < n * k; ++i) w[i] *= 4;  // greater than any token's
    const int64_t tokens = n - padding;
    if (live > 1) x[k + 3] = std::nanf("");  // row 1
    FusedLinearArgs args;
    args.linear.in = put_matrix(harness(), x, padded, k, kBf16);
    args.linear.weight = put_weight(harness(), w, n, k, kBf16);
    args.linear.out = fresh_matrix(harness(), padded, n, DType::kFloat32);
    args.linear.rows = {padded, put_int(harness(), live)};
    args.best_parts = device.best_parts;
    args.first_token = first;
    args.num_tokens = tokens;
    const size_t floats = static_cast<size_t>(padded) * 2 * args.best_parts;
    args.best = harness().fresh<float>(floats);
    args.live_logits = put_int(harness(), writes ? live : 0);
    table().fused_linear(stream(), args);
    const auto found = harness().get(args.best, floats);
    const auto out = get_matrix(harness(), args.linear.out, padded, n);
    for (int64_t r = 0; r < padded; ++r) {
      float logit = -INFINITY;
      float of_token = -1;
      for (int64_t i = r * 2 * args.best_parts; i < (r + 1) * 2 * args.best_parts; i += 2) {
        if (r >= live) {
          ASSERT_TRUE(std::isnan(found[i])) << "padded rows stay as they are";
        } else if (found[i] > logit || (found[i] == logit && found[i + 1] < of_token)) {
          logit = found[i], of_token = found[i + 1];
        }
      }
      if (of_token >= 0) of_token -= static_cast<float>(first);
      const auto token = static_cast<int64_t>(of_token);
      if (r >= live || !writes) {
        ASSERT_TRUE(std::isnan(out[r * n]) && std::isnan(out[r * n + n - 1])) << r;
        if (r >= live) continue;
      }
      if (r == 1) {
        EXPECT_EQ(token, -1);
        continue;
      }
      std::vector<double> exact(n);
      double size = 0;
      for (int64_t i = 0; i < n; ++i) {
        double of_row = 0;
        for (int64_t j = 0; j < k; ++j) {
          exact[i] += double{x[r * k + j]} * w[i * k + j];
          of_row += std::abs(double{x[r * k + j]} * w[i * k + j]);
        }
        size = std::max(size, of_row);
        if (!writes) continue;
        ASSERT_NEAR(out[r * n + i], exact[i], 3e-6 * of_row + 1e-6) << r << ' ' << i;
      }
      ASSERT_GE(token, 0) << r;
      ASSERT_LT(token, n / 2) << r << ": the first of two";
      EXPECT_NEAR(logit, exact[token], 3e-6 * size) << r;
      EXPECT_NEAR(logit, *std::max_element(exact.begin(), exact.begin() + tokens), 3e-6 * size)
          << r;
      if (!writes) continue;
      const auto* row = out.data() + r * n;
      EXPECT_EQ(token, std::max_element(row, row + tokens) - row) << r;
      EXPECT_EQ(logit, row[token]) << r;
    }
  };
  const int32_t most = device.max_silu_rows;
  for (const int32_t live : {0, 1, 2, 3, 64, 100, 128, 129, 200, most}) {
    check(live, live <= 128 ? 128 : most, 2080, 192, live % 2 == 0);
    check(live, most, 320, 1088, live % 2 == 1);
  }
  check(49, 49, 32, 320, true);
  check(81, 81, 4128, 192, false);
  for (const int32_t padded : {1, 3, 8, 9, 63, 64, 65, 72, 127}) {  // boxes of every height
    check(padded, padded, 2080, 1088, padded % 2 == 0);
    check((padded + 1) / 2, padded, 320, 192, padded % 2 == 1);
  }
  for (const int64_t tile : {128, 160, 192, 224, 256}) {
    check(3, 128, 2 * 132 * tile, 192, false);
    check(3, 128, 132 * tile - 16, 192, true);
    check(3, most, 2 * 66 * tile - 32, 192, true);
    check(3, 128, 132 * tile, 192, tile % 64 == 0, 132 * tile, 8);  // a last rank's
    check(3, most, 66 * tile, 192, true, 66 * tile, tile + 40);
  }
}

// The scale of a row is that of its whole input, whichever blocks have which part of K, of a
// block's first tile and of those after it; rows without numbers spoil no others.
TEST_P(FusedLinearTest, NormsWithoutAWeightMatchDoublePrecision) {
  if (table().fused_linear == nullptr) GTEST_SKIP() << "this device has no such op";
  const int32_t few = table().few_rows.max_rows, most = table().few_rows.max_unit_norm_rows;
  const auto norms = [this](int32_t m, int64_t n, int64_t k, bool silu, int32_t padded) {
    check({m, n, k, false, false, silu, !silu, !silu, kBf16, true}, padded);
  };
  ASSERT_GT(most, few);
  for (const int32_t m : {1, 2, few + 1, 15, 16, 17, 24, 33, 40, most}) {
    for (const int64_t k : {192, 320, 1088}) {
      norms(m, 96, k, true, m);
      norms(m, 200, k, false, std::min(m + 7, most));
    }
    norms(m, 21120, 192, true, m);  // several tiles a cluster
    norms(m, 2048, 4096, true, m);  // clusters of several blocks
    norms(m, 2048, 4096, false, most);
  }
  for (const int32_t live : {0, 1, 3})
    for (const int32_t padded : {few + 1, 32, most}) norms(live, 320, 320, true, padded);
}

TEST_P(FusedLinearTest, MatchesDoublePrecision) {
  if (table().fused_linear == nullptr) GTEST_SKIP() << "this device has no such op";
  for (int32_t m = 1; m <= table().few_rows.max_rows; ++m) {
    for (const int64_t k : {8, 64, 72, 512, 520, 1032, 4096}) {
      check({m, 40, k});
      check({m, 83, k, false, false, false, true, true});
      check({m, 83, k, true, false, false, true, false, DType::kFloat32});
      check({m, 32, k, true, true});
      check({m, 48, k, true, true, true});
      check({m, 48, k, false, false, true});
      check({m, 40, k, true, true, false, true, true});
    }
    check({m, 9000, 264, true, true});
    check({m, 9008, 264, true, false, true});
    check({m, 4400, 520, false, false, false, false, true});
    check({m, 2112, 520, true, true, false, true});
    check({m, 3072, 2048, true, true});
    check({m, 3080, 1032, true, false, false, false, true});
  }
  // Blocks of 8 outputs, and one for which blocks of 16 are as even.
  for (int32_t m = 1; m <= 2; ++m) {
    for (const int64_t k : {4104, 5128, 8192}) {
      check({m, 40, k, true, true, false, true, true});
      check({m, 83, k, true, false, false, true, false, DType::kFloat32});
    }
    check({m, 2560, 8192, true, true});
    check({m, 2112, 8192, true, true});
  }
  check({2, 64, 8192, true, true, true});
  check({1, 64, 8192, true, true});
  check({4, 40, 14336, false, false, false, false, true});
}

INSTANTIATE_TEST_SUITE_P(Device, FusedLinearTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
