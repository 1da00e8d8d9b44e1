// lora_linear, which only some devices have, against double precision: every kind of linear, few
// of many rows live, adapters of other ranks side by side; and that a row's bits are its own.
#include <algorithm>
#include <cmath>

#include "tests/gpu/ops/captured.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

constexpr int32_t kPlaces = 3;

struct LoraCase {
  int32_t live, padded;
  int64_t k;
  std::vector<int32_t> ends;
  int32_t max_rank = 16;
  bool silu = false, extras = false;  // extras: bias and residual
};

class LoraLinearTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (!IsSkipped() && table().lora_linear == nullptr)
      GTEST_SKIP() << "this device has no such op";
  }
  struct Values {
    std::vector<float> in, weight, a, b, bias, residual;
    std::vector<int32_t> adapter, ranks;
  };
  static Values values_of(const LoraCase& c) {
    const auto size = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b); };
    const int64_t n = c.ends.back(), width = std::ssize(c.ends) * c.max_rank;
    Values v;
    v.in = random_values(size(c.live, c.k), kBf16, 1);
    v.weight = random_values(size(n, c.k), kBf16, 2);
    v.a = random_values(size(kPlaces * width, c.k), kBf16, 3);
    v.b = random_values(size(int64_t{kPlaces} * c.max_rank, n), kBf16, 4);
    v.bias = random_values(static_cast<size_t>(n), DType::kFloat32, 5);
    v.residual = random_values(size(c.live, n), kBf16, 6);
    for (int32_t row = 0; row < c.live; ++row) v.adapter.push_back(row * 5 % 4 - 1);
    // One adapter of all ranks, one that leaves parts alone, one of ranks that are no multiple.
    for (int32_t place = 0; place < kPlaces; ++place) {
      for (int32_t part = 0; part < std::ssize(c.ends); ++part)
        v.ranks.push_back(place == 0 ? c.max_rank : place == 1 ? part % 2 * 8 : 3 + part * 2);
    }
    return v;
  }
  // What the op gives for rows of `v`, padded ones poisoned.
  std::vector<float> run(const LoraCase& c, const Values& v) {
    const int64_t n = c.ends.back(), width = std::ssize(c.ends) * c.max_rank;
    const int64_t cols = c.silu ? n / 2 : n;
    const auto put = [&](std::vector<float> live, int64_t of_cols) {
      live.resize(static_cast<size_t>(c.padded * of_cols), std::nanf(""));
      return put_matrix(harness(), live, c.padded, of_cols, kBf16);
    };
    LoraLinearArgs args;
    args.linear.in = put(v.in, c.k);
    args.linear.weight = put_weight(harness(), v.weight, n, c.k, kBf16);
    args.linear.out = fresh_matrix(harness(), c.padded, cols, kBf16);
    args.linear.rows = {c.padded, put_int(harness(), c.live)};
    if (c.extras) {
      args.linear.bias = harness().put(v.bias);
      args.linear.residual = put(v.residual, n);
    }
    args.silu_mul = c.silu;
    std::vector<int32_t> adapter = v.adapter;
    adapter.resize(static_cast<size_t>(c.padded), 1 << 20);  // nobody reads it
    args.adapter = harness().put(adapter);
    args.a = put_matrix(harness(), v.a, kPlaces * width, c.k, kBf16).data;
    args.b = put_matrix(harness(), v.b, n, int64_t{kPlaces} * c.max_rank, kBf16).data;
    args.places = {harness().put(v.ranks), static_cast<int32_t>(c.ends.size()),
                   static_cast<int32_t>(c.ends.size()), c.max_rank, kPlaces};
    std::ranges::copy(c.ends, args.part_end);
    args.shrunk = fresh_matrix(harness(), c.padded, kPlaces * width, kBf16).data;
    table().lora_linear(stream(), args);
    auto out = get_matrix(harness(), args.linear.out, c.padded, cols);
    expect_counts_are_zero(harness());
    out.resize(static_cast<size_t>(c.live * cols));
    return out;
  }
  void check(const LoraCase& c) {
    SCOPED_TRACE(testing::Message() << c.live << " rows of " << c.padded << ", k " << c.k << ", n "
                                    << c.ends.back() << " in " << c.ends.size() << ", rank "
                                    << c.max_rank << " silu " << c.silu << " extras " << c.extras);
    const Values v = values_of(c);
    const int64_t n = c.ends.back(), parts = std::ssize(c.ends), cols = c.silu ? n / 2 : n;
    std::vector<double> expected, tolerance;
    for (int64_t row = 0; row < c.live; ++row) {
      const float* x = v.in.data() + row * c.k;
      const int64_t place = v.adapter[static_cast<size_t>(row)];
      std::vector<double> shrunk(static_cast<size_t>(parts * c.max_rank));
      for (int64_t i = 0; place >= 0 && i < parts * c.max_rank; ++i) {
        if (i % c.max_rank >= v.ranks[static_cast<size_t>(place * parts + i / c.max_rank)])
          continue;
        const float* a = v.a.data() + (place * parts * c.max_rank + i) * c.k;
        for (int64_t j = 0; j < c.k; ++j) shrunk[static_cast<size_t>(i)] += double{x[j]} * a[j];
      }
      const auto value = [&](int64_t col, double& size) {
        double sum = 0;
        for (int64_t j = 0; j < c.k; ++j) {
          const double product = double{x[j]} * v.weight[static_cast<size_t>(col * c.k + j)];
          sum += product, size += std::abs(product);
        }
        int64_t part = 0;
        while (col >= c.ends[static_cast<size_t>(part)]) ++part;
        for (int64_t j = 0; place >= 0 && j < c.max_rank; ++j) {
          const int64_t at = (col * kPlaces + place) * c.max_rank + j;
          const double product =
              shrunk[static_cast<size_t>(part * c.max_rank + j)] * v.b[static_cast<size_t>(at)];
          sum += product, size += std::abs(product) * 1500;  // of products rounded to bfloat16
        }
        return sum;
      };
      for (int64_t i = 0; i < cols; ++i) {
        double size = 0, up_size = 0, sum = value(i, size);
        if (c.silu) {
          const double up = value(cols + i, up_size);
          size = size * std::abs(up) + up_size * std::abs(sum);
          sum = sum / (1 + std::exp(-sum)) * up;
        }
        if (c.extras) {
          sum += v.bias[static_cast<size_t>(i)] + v.residual[static_cast<size_t>(row * n + i)];
        }
        expected.push_back(sum);
        tolerance.push_back(3e-6 * size + 1e-6);
      }
    }
    expect_close(run(c, v), expected, tolerance, kBf16);
  }
};

TEST_P(LoraLinearTest, MatchesDoublePrecision) {
  const int32_t most = table().few_rows.max_plain_rows;
  for (const int32_t live : {1, 2, 7, 16, 31, 33, most}) {
    for (const int32_t padded : {live, std::min(live + 9, most)}) {
      check({live, padded, 192, {64, 128, 168}});
      check({live, padded, 320, {200}, 8, false, true});
      check({live, padded, 256, {160, 320}, 16, true});
    }
    check({live, most, 1088, {2080, 4160}, 64, true});
    check({live, live, 4160, {128}, 64, false, true});
    check({live, live, 320, {64, 192}, 24});
    check({live, live, 192, {10560, 21120}});  // several tiles a cluster
  }
  check({0, 16, 320, {200}});
}

TEST_P(LoraLinearTest, ARowsBitsDoNotDependOnItsNeighbours) {
  const LoraCase many{13, 16, 320, {160, 320}, 16, true};
  const Values v = values_of(many);
  const auto together = run(many, v);
  for (int32_t row = 0; row < many.live; ++row) {
    LoraCase one = many;
    one.live = 1;
    Values alone = v;
    alone.in.assign(v.in.begin() + row * one.k, v.in.begin() + (row + 1) * one.k);
    alone.adapter = {v.adapter[static_cast<size_t>(row)]};
    const int64_t cols = one.ends.back() / 2;
    expect_same_bits(run(one, alone),
                     {together.begin() + row * cols, together.begin() + (row + 1) * cols});
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LoraLinearTest, testing::ValuesIn(all_harnesses()), choice_name);

}  // namespace
}  // namespace refrain::kernels
