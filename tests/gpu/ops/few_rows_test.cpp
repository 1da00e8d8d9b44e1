// The ops for few rows, which only some devices have: fused_linear against double precision,
// rope_attention against rope_kv_write followed by attention.
#include <cmath>
#include <numeric>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr DType kBf16 = DType::kBFloat16;

struct FusedCase {
  int32_t m;
  int64_t n, k;  // of the weight
  bool norm = false, delta = false, silu = false, bias = false, residual = false;
  DType out = kBf16;
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
    SCOPED_TRACE(testing::Message()
                 << "m " << c.m << " of " << padded << " n " << c.n << " k " << c.k << " norm "
                 << c.norm << " delta " << c.delta << " silu " << c.silu << " bias " << c.bias
                 << " residual " << c.residual << " out " << to_string(c.out));
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
    table().fused_linear(stream(), args);

    std::vector<double> expected, tolerance;
    std::vector<float> sums(c.m * c.k);
    for (int32_t r = 0; r < c.m; ++r) {
      std::vector<double> input(c.k);
      double squares = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        const int64_t at = r * c.k + i;
        sums[at] = c.delta ? round_to(x[at] + delta[at], kBf16) : x[at];
        squares += double{sums[at]} * sums[at];
        input[i] = c.norm ? round_to(sums[at] * norm[i], kBf16) : sums[at];
      }
      const double scale =
          c.norm ? 1 / std::sqrt(squares / static_cast<double>(c.k) + args.eps) : 1;
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
  for (const int32_t m : {few + 1, 8, 9, 16, 17, 31, 32, 33, 63, most}) {
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
    for (const int32_t padded : {few + 1, 16, 32, most}) {
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

struct RopeCase {
  int32_t q_heads, kv_heads, head_dim, rotary_dim, block_size;
  bool norm;
  int32_t window;
  std::vector<int32_t> contexts;
};

class RopeAttentionTest : public OpsTest {
 protected:
  static constexpr int32_t kMaxLen = 1040;

  // Both ways of one batch: a row a request, `padded` rows after the live ones.
  void check(const RopeCase& c, int32_t padded) {
    SCOPED_TRACE(testing::Message() << c.q_heads << "/" << c.kv_heads << " of " << c.head_dim
                                    << " rotary " << c.rotary_dim << " norm " << c.norm
                                    << " window " << c.window << " block " << c.block_size);
    const auto live = static_cast<int32_t>(c.contexts.size()), rows = live + padded;
    const int32_t max_blocks = (kMaxLen + c.block_size - 1) / c.block_size;
    const int64_t cols = int64_t{c.q_heads + 2 * c.kv_heads} * c.head_dim;
    const int64_t out_cols = int64_t{c.q_heads} * c.head_dim;
    std::vector<int32_t> table_blocks(live * max_blocks);
    std::iota(table_blocks.begin(), table_blocks.end(), 1);
    std::shuffle(table_blocks.begin(), table_blocks.end(), std::mt19937(3));
    std::vector<int32_t> positions, starts, lens, slots;
    std::vector<int64_t> kv_slots;
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t at = r < live ? c.contexts[r] : 0;
      positions.push_back(at);
      lens.push_back(at + 1);
      slots.push_back(std::min(r, live));
      starts.push_back(std::min(r, live));
      kv_slots.push_back(r < live ? int64_t{table_blocks[r * max_blocks + at / c.block_size]} *
                                            c.block_size +
                                        at % c.block_size
                                  : 0);
    }
    starts.push_back(live);
    const int64_t cache_rows = (int64_t{live} * max_blocks + 1) * 2 * c.kv_heads * c.block_size;
    // What was not written holds poison.
    std::vector<float> cache(cache_rows * c.head_dim, std::nanf(""));
    const auto keys = random_values(int64_t{kMaxLen} * c.head_dim * 2, kBf16, 9);
    for (int32_t r = 0; r < live; ++r) {
      for (int32_t p = 0; p < c.contexts[r]; ++p) {
        for (int32_t h = 0; h < 2 * c.kv_heads; ++h) {
          const int64_t block = table_blocks[r * max_blocks + p / c.block_size];
          const int64_t row = (block * 2 * c.kv_heads + h) * c.block_size + p % c.block_size;
          std::copy_n(keys.begin() + (p * 7 + h * 31 + r * 13) % kMaxLen * c.head_dim, c.head_dim,
                      cache.begin() + row * c.head_dim);
        }
      }
    }
    table_blocks.resize((live + 1) * max_blocks, 0);
    auto qkv = random_values(live * cols, kBf16, 11, 2.0f);
    qkv.resize(rows * cols, std::nanf(""));
    const auto q_norm = random_values(c.head_dim, DType::kFloat32, 12);
    const auto k_norm = random_values(c.head_dim, DType::kFloat32, 13);
    std::vector<float> angles(int64_t{kMaxLen} * c.rotary_dim);
    for (int64_t p = 0; p < kMaxLen; ++p) {
      for (int32_t i = 0; i < c.rotary_dim / 2; ++i) {
        const double angle = static_cast<double>(p) / (1 + i);
        angles[p * c.rotary_dim + i] = static_cast<float>(std::cos(angle));
        angles[p * c.rotary_dim + c.rotary_dim / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }

    RopeAttentionArgs args;
    RopeKvWriteArgs& rope = args.rope;
    rope.positions = harness().put(positions);
    rope.kv_slots = harness().put(kv_slots);
    rope.cos_sin = harness().put(angles);
    if (c.norm) {
      rope.q_norm = harness().put(q_norm);
      rope.k_norm = harness().put(k_norm);
    }
    rope.cache_dtype = kBf16;
    rope.q_heads = c.q_heads;
    rope.kv_heads = c.kv_heads;
    rope.head_dim = c.head_dim;
    rope.rotary_dim = c.rotary_dim;
    rope.block_size = c.block_size;
    rope.rows = {rows, put_int(harness(), live)};
    AttentionArgs& attention = args.attention;
    attention.cache_dtype = kBf16;
    attention.inputs.query_start = harness().put(starts);
    attention.inputs.seq_lens = harness().put(lens);
    attention.inputs.row_slot = harness().put(slots);
    attention.block_table = harness().put(table_blocks);
    attention.max_blocks = max_blocks;
    attention.q_heads = c.q_heads;
    attention.kv_heads = c.kv_heads;
    attention.head_dim = c.head_dim;
    attention.block_size = c.block_size;
    attention.sliding_window = c.window;
    attention.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    attention.tokens = attention.reqs = rope.rows;
    attention.uniform_query_len = 1;

    std::vector<float> outs[2], caches[2];
    for (const int fused : {0, 1}) {
      rope.qkv = attention.q = put_matrix(harness(), qkv, rows, cols, kBf16);
      const Matrix in_cache = put_matrix(harness(), cache, cache_rows, c.head_dim, kBf16);
      rope.cache = in_cache.data;
      attention.cache = in_cache.data;
      attention.out = fresh_matrix(harness(), rows, out_cols, kBf16);
      if (fused == 1) {
        table().rope_attention(stream(), args);
      } else {
        table().rope_kv_write(stream(), rope);
        table().attention(stream(), attention);
      }
      outs[fused] = get_matrix(harness(), attention.out, rows, out_cols);
      caches[fused] = get_matrix(harness(), in_cache, cache_rows, c.head_dim);
    }
    expect_same_bits(caches[0], caches[1]);
    const std::vector<double> expected(outs[0].begin(), outs[0].end());
    expect_close(outs[1], expected,
                 std::vector<double>(expected.size(), harness().attention_error(kBf16) + 8e-3),
                 kBf16);
    for (int64_t i = live * out_cols; i < rows * out_cols; ++i) ASSERT_EQ(outs[1][i], 0.0f);
  }
};

TEST_P(RopeAttentionTest, IsRopeKvWriteThenAttention) {
  if (table().rope_attention == nullptr) GTEST_SKIP() << "this device has no such op";
  for (const int32_t dim : {64, 128}) {
    for (int32_t group = 1; group <= table().few_rows.max_group; ++group) {
      check({2 * group, 2, dim, dim, 16, false, 0, {300}}, 0);
    }
    for (const int32_t context : {0, 1, 7, 31, 32, 33, 63, 100, 511, 512, 600, 1039}) {
      check({32, 8, dim, dim, 16, false, 0, {context}}, 1);
    }
    check({8, 2, dim, dim, 32, true, 0, {5, 200, 0, 1000}}, 0);
    check({8, 2, dim, 32, 16, false, 0, {700, 3}}, 2);
    check({8, 2, dim, 32, 8, true, 0, {700, 3, 64}}, 1);
    check({8, 2, dim, dim, 1, false, 0, {700, 3, 64}}, 1);
    check({8, 2, dim, dim, 16, false, 100, {700, 3, 99, 100}}, 0);
    check({8, 2, dim, dim, 16, false, 100, {700, 3, 99, 100, 163, 164}}, 2);
    check({12, 2, dim, 32, 8, true, 0, {700, 3, 64, 1000, 0, 31}}, 0);
    check({16, 2, dim, dim, 1, true, 0, {700, 3, 64, 1000, 0, 31}}, 1);
  }
}

// CG-37: every live count at every size that the op is used for.
TEST_P(RopeAttentionTest, CG37IsRightForEveryLiveCount) {
  if (table().rope_attention == nullptr) GTEST_SKIP() << "this device has no such op";
  for (const int32_t kv_heads : {1, 2, 4, 8}) {
    for (const int32_t dim : {64, 128}) {
      for (const int32_t rows : {1, 2, 4, 8, 15}) {
        for (int32_t live = 1; live <= rows; live += live < 4 ? 1 : 3) {
          std::vector<int32_t> contexts = {40,  1000, 0, 17,  64,  63, 15, 300,
                                           128, 16,   1, 700, 255, 48, 512};
          contexts.resize(static_cast<size_t>(live));
          check({4 * kv_heads, kv_heads, dim, dim, 16, false, 0, contexts}, rows - live);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, FusedLinearTest, testing::ValuesIn(all_harnesses()), choice_name);
INSTANTIATE_TEST_SUITE_P(Device, RopeAttentionTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
