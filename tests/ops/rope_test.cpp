// rope_kv_write against double precision: rotation, per-head norm, the places written in the cache.
#include <cmath>

#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

struct Shape {
  int32_t q_heads, kv_heads, head_dim, rotary_dim, block_size;
  bool norm;
};

class RopeTest : public OpsTest {
 protected:
  static constexpr int32_t kTokens = 6, kLive = 5, kPositions = 50, kBlocks = 4;

  // One head in double precision: norm over the head, then the rotation of its position.
  static std::vector<double> rotated(const float* head, const Shape& shape,
                                     const std::vector<float>& norm, const float* cos_sin) {
    std::vector<double> x(head, head + shape.head_dim);
    if (shape.norm) {
      double sum = 0;
      for (const double v : x) sum += v * v;
      for (int i = 0; i < shape.head_dim; ++i) {
        x[i] = x[i] / std::sqrt(sum / shape.head_dim + 1e-6) * norm[i];
      }
    }
    const int half = shape.rotary_dim / 2;
    std::vector<double> out = x;
    for (int i = 0; i < half; ++i) {
      const double cos = cos_sin[i], sin = cos_sin[half + i];
      out[i] = x[i] * cos - x[half + i] * sin;
      out[half + i] = x[half + i] * cos + x[i] * sin;
    }
    return out;
  }

  // A row of qkv has `rest` columns behind it.
  void check(const Shape& s, DType dtype, DType cache_dtype, int64_t rest);
};

void RopeTest::check(const Shape& s, DType dtype, DType cache_dtype, int64_t rest) {
  SCOPED_TRACE(testing::Message() << s.q_heads << "/" << s.kv_heads << " of " << s.head_dim << " ("
                                  << s.rotary_dim << ") " << to_string(dtype));
  const int32_t heads = s.q_heads + 2 * s.kv_heads;
  const int64_t cols = int64_t{heads} * s.head_dim, dim = s.head_dim;
  const auto qkv = random_values(kTokens * cols, dtype, 1);
  const auto cos_sin = random_values(kPositions * s.rotary_dim, DType::kFloat32, 2);
  const auto norm = random_values(s.head_dim, DType::kFloat32, 3);
  const std::vector<int32_t> positions = {0, 7, 49, 3, 12, 0};
  const std::vector<int64_t> kv_slots = {s.block_size + 0, 2 * s.block_size - 1,
                                         3 * s.block_size, 3 * s.block_size + 1,
                                         2 * s.block_size, 0};
  const int64_t cache_rows = int64_t{kBlocks} * 2 * s.kv_heads * s.block_size;
  RopeKvWriteArgs args;
  args.qkv = put_matrix(harness(), qkv, kTokens, cols, dtype, rest);
  args.positions = harness().put(positions);
  args.kv_slots = harness().put(kv_slots);
  args.cos_sin = harness().put(cos_sin);
  if (s.norm) args.q_norm = args.k_norm = harness().put(norm);
  const Matrix cache = fresh_matrix(harness(), cache_rows, dim, cache_dtype);
  args.cache = cache.data;
  args.cache_dtype = cache_dtype;
  args.q_heads = s.q_heads;
  args.kv_heads = s.kv_heads;
  args.head_dim = s.head_dim;
  args.rotary_dim = s.rotary_dim;
  args.block_size = s.block_size;
  args.rows = {kTokens, put_int(harness(), kLive)};
  table().rope_kv_write(stream(), args);

  const auto out = get_matrix(harness(), args.qkv, kTokens, cols);
  const auto written = get_matrix(harness(), cache, cache_rows, dim);
  std::vector<bool> expected_row(cache_rows, false);
  const std::vector<double> tolerance(dim, 1e-5);
  for (int32_t t = 0; t < kLive; ++t) {
    const float* token = qkv.data() + t * cols;
    const float* angles = cos_sin.data() + positions[t] * s.rotary_dim;
    for (int32_t h = 0; h < s.q_heads; ++h) {
      const auto* q = out.data() + t * cols + h * dim;
      expect_close({q, q + dim}, rotated(token + h * dim, s, norm, angles), tolerance, dtype);
    }
    for (int32_t h = 0; h < s.kv_heads; ++h) {
      const int64_t block = kv_slots[t] / s.block_size, offset = kv_slots[t] % s.block_size;
      const int64_t k_row = ((block * 2) * s.kv_heads + h) * s.block_size + offset;
      const int64_t v_row = ((block * 2 + 1) * s.kv_heads + h) * s.block_size + offset;
      expected_row[k_row] = expected_row[v_row] = true;
      const auto* k = written.data() + k_row * dim;
      const auto* v = written.data() + v_row * dim;
      const float* in = token + (s.q_heads + h) * dim;
      expect_close({k, k + dim}, rotated(in, s, norm, angles), tolerance, cache_dtype);
      in += s.kv_heads * dim;
      expect_close({v, v + dim}, {in, in + dim}, tolerance, cache_dtype);
    }
  }
  for (int64_t r = 0; r < cache_rows; ++r) {
    ASSERT_NE(expected_row[r], std::isnan(written[r * dim])) << "cache row " << r;
  }
  expect_same_bits({out.begin() + kLive * cols, out.end()},
                   {qkv.begin() + kLive * cols, qkv.end()});
}

TEST_P(RopeTest, MatchesDoublePrecisionAndWritesOnlyTheSlotsOfLiveTokens) {
  for (const DType dtype : kFloatTypes) {
    for (const DType cache : kFloatTypes) {
      for (const int64_t rest : {3, 8}) {  // without and with rows at whole words
        check({9, 3, 64, 64, 16, false}, dtype, cache, rest);
        check({5, 1, 64, 64, 16, true}, dtype, cache, rest);
        check({4, 1, 128, 128, 16, true}, dtype, cache, rest);
        check({3, 2, 128, 128, 24, false}, dtype, cache, rest);
        check({3, 1, 256, 256, 8, true}, dtype, cache, rest);
        check({2, 1, 128, 64, 16, true}, dtype, cache, rest);
        check({2, 2, 80, 80, 8, true}, dtype, cache, rest);
        check({3, 1, 80, 32, 32, false}, dtype, cache, rest);
        check({2, 1, 8, 6, 4, true}, dtype, cache, rest);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, RopeTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
