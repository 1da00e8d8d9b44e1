// Row ops against double precision: rms_norm, add_rms_norm, add, silu_mul, embed, select_rows.
#include <algorithm>
#include <cmath>

#include "kernels/host/pack.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int64_t kRows = 5, kLive = 4;
constexpr int64_t kWidths[] = {1, 8, 16, 31, 64, 576, 8192, 10001};

class RowOpsTest : public OpsTest {
 protected:
  Rows rows() { return {kRows, put_int(harness(), kLive)}; }

  // The live rows close to `expected` within a relative tolerance, the others unwritten.
  void expect_rows(const Matrix& out, int64_t cols, const std::vector<double>& expected) {
    const auto all = get_matrix(harness(), out, kRows, cols);
    std::vector<double> tolerance;
    tolerance.reserve(expected.size());
    for (const double value : expected) tolerance.push_back(std::abs(value) * 2e-6 + 1e-6);
    expect_close({all.begin(), all.begin() + kLive * cols}, expected, tolerance, out.dtype);
    for (int64_t i = kLive * cols; i < kRows * cols; ++i) {
      ASSERT_TRUE(std::isnan(all[i])) << "a row beyond the live ones was written";
    }
  }

  static std::vector<double> normalised(const std::vector<float>& x, int64_t cols, double eps,
                                        const std::vector<float>& weight) {
    std::vector<double> out;
    for (int64_t r = 0; r < kLive; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) sum += double{x[r * cols + c]} * x[r * cols + c];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(cols) + eps);
      for (int64_t c = 0; c < cols; ++c) out.push_back(x[r * cols + c] * scale * weight[c]);
    }
    return out;
  }
};

TEST_P(RowOpsTest, RmsNormMatchesDoublePrecision) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : kWidths) {
      const auto x = random_values(kRows * cols, dtype, 1);
      const auto weight = random_values(cols, DType::kFloat32, 2);
      const Matrix out = fresh_matrix(harness(), kRows, cols, dtype, 2);
      table().rms_norm(stream(),
                       {put_matrix(harness(), x, kRows, cols, dtype, 3), harness().put(weight), out,
                        static_cast<int32_t>(cols), 1e-5f, rows()});
      expect_rows(out, cols, normalised(x, cols, 1e-5f, weight));
    }
  }
}

TEST_P(RowOpsTest, AddRmsNormRoundsTheResidualThenNormalisesIt) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : kWidths) {
      auto x = random_values(kRows * cols, dtype, 1);
      const auto delta = random_values(kRows * cols, dtype, 2);
      const auto weight = random_values(cols, DType::kFloat32, 3);
      const Matrix residual = put_matrix(harness(), x, kRows, cols, dtype, 1);
      const Matrix out = fresh_matrix(harness(), kRows, cols, dtype);
      table().add_rms_norm(stream(),
                           {residual, put_matrix(harness(), delta, kRows, cols, dtype),
                            harness().put(weight), out, static_cast<int32_t>(cols), 1e-6f, rows()});
      for (int64_t i = 0; i < kLive * cols; ++i) x[i] = round_to(x[i] + delta[i], dtype);
      expect_same_bits(get_matrix(harness(), residual, kRows, cols), x);
      expect_rows(out, cols, normalised(x, cols, 1e-6f, weight));
    }
  }
}

// More rows than a device has places for blocks of 4096 columns.
TEST_P(RowOpsTest, NormsOfManyRowsEqualThoseOfFew) {
  constexpr int32_t kMany = 600, kDead = 7, kCols = 4096;
  const DType dtype = DType::kBFloat16;
  const auto x = random_values(int64_t{kMany} * kCols, dtype, 1);
  const auto delta = random_values(int64_t{kMany} * kCols, dtype, 2);
  const float* weight = harness().put(random_values(kCols, DType::kFloat32, 3));
  const Matrix of_delta = put_matrix(harness(), delta, kMany, kCols, dtype);
  const auto norms = [&](int32_t at_once, int32_t live) {
    const Matrix residual = put_matrix(harness(), x, kMany, kCols, dtype);
    const Matrix added = fresh_matrix(harness(), kMany, kCols, dtype);
    const Matrix plain = fresh_matrix(harness(), kMany, kCols, dtype);
    for (int32_t first = 0; first < live; first += at_once) {
      const auto from = [first](const Matrix& m) {
        return Matrix{static_cast<uint16_t*>(m.data) + int64_t{first} * m.stride, m.dtype,
                      m.stride};
      };
      const Rows rows{std::min(at_once, kMany - first),
                      put_int(harness(), std::min(at_once, live - first))};
      table().rms_norm(stream(), {from(residual), weight, from(plain), kCols, 1e-5f, rows});
      table().add_rms_norm(
          stream(), {from(residual), from(of_delta), weight, from(added), kCols, 1e-5f, rows});
    }
    auto all = get_matrix(harness(), residual, kMany, kCols);
    for (const Matrix& m : {added, plain}) {
      const auto more = get_matrix(harness(), m, kMany, kCols);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  const auto many = norms(kMany, kMany - kDead), few = norms(50, kMany - kDead);
  EXPECT_TRUE(std::isnan(many.back()));
  EXPECT_FALSE(std::isnan(many[many.size() - (kDead + 1) * kCols]));
  expect_same_bits(many, few);
}

TEST_P(RowOpsTest, AddMatches) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : kWidths) {
      const auto a = random_values(kRows * cols, dtype, 1);
      const auto b = random_values(kRows * cols, dtype, 2);
      const Matrix out = fresh_matrix(harness(), kRows, cols, dtype, 7);
      table().add(stream(), {put_matrix(harness(), a, kRows, cols, dtype),
                             put_matrix(harness(), b, kRows, cols, dtype, 1), out,
                             static_cast<int32_t>(cols), rows()});
      std::vector<double> expected;
      for (int64_t i = 0; i < kLive * cols; ++i) expected.push_back(double{a[i]} + b[i]);
      expect_rows(out, cols, expected);
    }
  }
}

TEST_P(RowOpsTest, SiluMulMatchesDoublePrecision) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : kWidths) {
      auto in = random_values(kRows * 2 * cols, dtype, 1, 20.0f);
      in[0] = 0;
      in[2 * cols] = -200;  // far below the range of exp
      in[4 * cols] = 200;
      const Matrix out = fresh_matrix(harness(), kRows, cols, dtype, 1);
      table().silu_mul(stream(), {put_matrix(harness(), in, kRows, 2 * cols, dtype), out,
                                  static_cast<int32_t>(cols), rows()});
      std::vector<double> expected;
      for (int64_t r = 0; r < kLive; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const double gate = in[r * 2 * cols + c], up = in[r * 2 * cols + cols + c];
          expected.push_back(gate / (1 + std::exp(-gate)) * up);
        }
      }
      expect_rows(out, cols, expected);
    }
  }
}

TEST_P(RowOpsTest, FoldNormMultipliesColumnsAndLeavesOnes) {
  if (table().fold_norm == nullptr) {
    EXPECT_EQ(table().few_rows.max_unit_norm_rows, 0) << "that folded norms are for";
    return;
  }
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : {8, 30, 4096}) {
      const auto values = random_values(kRows * cols, dtype, 1);
      const auto norm = random_values(cols, DType::kFloat32, 2);
      FoldNormArgs args{put_matrix(harness(), values, kRows, cols, dtype), harness().put(norm),
                        kRows, static_cast<int32_t>(cols)};
      table().fold_norm(stream(), args);
      std::vector<float> expected;
      for (int64_t i = 0; i < kRows * cols; ++i)
        expected.push_back(round_to(values[i] * norm[i % cols], dtype));
      expect_same_bits(get_matrix(harness(), args.weight, kRows, cols), expected);
      const auto ones = get_matrix(harness(), {args.norm, DType::kFloat32, cols}, 1, cols);
      expect_same_bits(ones, std::vector<float>(cols, 1.0f));
    }
  }
}

TEST_P(RowOpsTest, EmbedReadsTiledAndRowMajorTablesAndGivesZerosOutsideItsShard) {
  const int64_t vocab = 37;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t cols : {2, 30, 64}) {
      const auto values = random_values(vocab * cols, dtype, 1);
      std::vector<std::byte> packed(tiled16_bytes(vocab, cols, dtype), std::byte{0xff});
      ASSERT_TRUE(pack_tiled16({values.data(), DType::kFloat32, cols}, vocab, cols, dtype,
                               packed.data(), 0));
      const Weight tables[] = {{harness().put(packed), dtype, WeightLayout::kTiled16, vocab, cols},
                               {put_matrix(harness(), values, vocab, cols, dtype).data, dtype,
                                WeightLayout::kRowMajor, vocab, cols}};
      const std::vector<int32_t> ids = {100, 136, 99, 117, 137};
      for (const Weight& weight : tables) {
        if (weight.layout != harness().weight_layout() &&
            weight.layout != WeightLayout::kRowMajor) {
          continue;  // every device reads row-major tables
        }
        const Matrix out = fresh_matrix(harness(), kRows, cols, dtype, 1);
        table().embed(stream(), {harness().put(ids), weight, 100, 137, out, rows()});
        std::vector<double> expected;
        for (int64_t r = 0; r < kLive; ++r) {
          const bool here = ids[r] >= 100 && ids[r] < 137;
          for (int64_t c = 0; c < cols; ++c) {
            expected.push_back(here ? values[(ids[r] - 100) * cols + c] : 0.0f);
          }
        }
        expect_rows(out, cols, expected);
      }
    }
  }
}

TEST_P(RowOpsTest, SelectRowsCopies) {
  for (const DType dtype : kFloatTypes) {
    const int64_t cols = 50;
    const auto in = random_values(7 * cols, dtype, 1);
    const std::vector<int32_t> index = {6, 0, 3, 3, 99};
    const Matrix out = fresh_matrix(harness(), kRows, cols, dtype, 1);
    table().select_rows(stream(), {put_matrix(harness(), in, 7, cols, dtype, 2),
                                   harness().put(index), out, static_cast<int32_t>(cols), rows()});
    std::vector<double> expected;
    for (int64_t r = 0; r < kLive; ++r) {
      for (int64_t c = 0; c < cols; ++c) expected.push_back(in[index[r] * cols + c]);
    }
    expect_rows(out, cols, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Device, RowOpsTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
