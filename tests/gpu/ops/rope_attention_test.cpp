// rope_attention, which only some devices have, against rope_kv_write followed by attention.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

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

INSTANTIATE_TEST_SUITE_P(Device, RopeAttentionTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
