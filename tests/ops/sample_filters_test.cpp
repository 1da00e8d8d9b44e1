// sample with filters, draw by draw, against a sort in double precision: odd vocabularies, ties,
// masks, filters that keep one token, all, or thousands.
#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/host/sampling.h"
#include "tests/ops/sample_case.h"

namespace refrain::kernels {
namespace {

constexpr double kRounding = 4e-6;  // of all weight: kernels may weigh in float32

// The row's tokens in the order of the draw, with the weight up to and including each.
struct Order {
  std::vector<int32_t> tokens;
  std::vector<double> through;
};

Order order_of(const std::vector<float>& logits, const SlotParams& p) {
  const bool best_first = p.top_k > 0 || p.top_p < 1;
  Order order;
  float highest = -kInfinity;
  for (const float x : logits) highest = x > highest ? x : highest;
  const auto n = static_cast<int32_t>(logits.size());
  for (int32_t t = 0; t < n; ++t) {
    if (logits[t] > -kInfinity) order.tokens.push_back(t);
  }
  auto& tokens = order.tokens;
  if (best_first) {
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  }
  const auto keep = [&](size_t count) { tokens.resize(std::min(tokens.size(), count)); };
  if (p.min_p > 0) {
    const float least = std::min(highest, highest + p.temperature * std::log(p.min_p));
    std::erase_if(tokens, [&](int32_t t) { return logits[t] < least; });
  }
  if (p.top_k > 0 && p.top_k < static_cast<int32_t>(tokens.size())) {
    const float least = logits[tokens[p.top_k - 1]];
    keep(
        std::count_if(tokens.begin(), tokens.end(), [&](int32_t t) { return logits[t] >= least; }));
  }
  double sum = 0;
  for (const int32_t t : tokens) {
    sum += std::exp((static_cast<double>(logits[t]) - highest) / p.temperature);
    order.through.push_back(sum);
  }
  if (p.top_p < 1) {
    const double needed = double{p.top_p} * sum;
    const auto cut = std::lower_bound(order.through.begin(), order.through.end(), needed);
    keep(static_cast<size_t>(cut - order.through.begin()) + 1);
    order.through.resize(tokens.size());
  }
  return order;
}

// Whether the token is the one at this place of the order, within rounding.
void expect_drawn(const Order& order, int32_t token, double uniform, const std::string& what) {
  const auto at = std::find(order.tokens.begin(), order.tokens.end(), token);
  ASSERT_NE(at, order.tokens.end()) << what << ": token " << token << " was filtered out";
  const auto i = static_cast<size_t>(at - order.tokens.begin());
  const double all = order.through.back(), target = uniform * all;
  EXPECT_LE((i == 0 ? 0 : order.through[i - 1]) - kRounding * all, target) << what;
  EXPECT_GE(order.through[i] + kRounding * all, target) << what;
}

std::vector<std::vector<float>> rows_of_logits(int32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  const auto normal = [&](float spread) {
    std::normal_distribution<float> draw(0, spread);
    std::vector<float> row(vocab);
    for (float& x : row) x = draw(random);
    return row;
  };
  std::vector<std::vector<float>> rows = {normal(3.0f), normal(0.3f)};
  rows.push_back(normal(2.0f));  // one token far above the others
  rows.back()[vocab / 2] = 25;
  rows.push_back(normal(2.0f));  // in steps, as bfloat16 would give: many ties
  for (float& x : rows.back()) x = std::round(x * 4) / 4;
  rows.emplace_back(vocab, -1.5f);  // all equal
  rows.push_back(normal(3.0f));     // most of them forbidden
  for (int32_t t = 0; t < vocab; ++t) {
    if (t % 7 != 0) rows.back()[t] = -kInfinity;
  }
  rows.emplace_back(vocab, -kInfinity);  // all but one
  rows.back()[vocab / 3] = -40;
  rows.push_back(normal(1.0f));
  for (int32_t t = 1; t < vocab; t += 5) rows.back()[t] = std::nanf("");
  return rows;
}

struct Filters {
  float temperature, top_p, min_p;
  int32_t top_k;
};
constexpr Filters kFilters[] = {
    {0.8f, 0.95f, 0, 50}, {0.8f, 0.95f, 0, 0},     {0.8f, 1, 0, 50},   {1, 1, 0, 0},
    {1, 0.0001f, 0, 0},   {1, 0.9999f, 0, 0},      {1, 1, 0, 1},       {1, 0.9f, 0, 1},
    {1, 0.6f, 0, 3000},   {0.7f, 0.9f, 0.02f, 40}, {2, 0.9f, 0.1f, 0}, {1, 1, 0.3f, 0},
    {5, 0.5f, 0, 200},    {0.05f, 0.99f, 0, 0},    {1, 1, 0, 1 << 20}};

class SampleFiltersTest : public OpsTest {
 protected:
  void check(int32_t vocab, int32_t shards) {
    const auto logits = rows_of_logits(vocab, static_cast<uint32_t>(vocab));
    const auto kinds = static_cast<int32_t>(logits.size());
    const auto filters = static_cast<int32_t>(std::size(kFilters));
    SampleCase c(harness(), kinds * filters, vocab, shards);
    for (int32_t r = 0; r < kinds * filters; ++r) {
      const Filters& f = kFilters[r % filters];
      SlotParams& p = c.params[r];
      p.temperature = f.temperature, p.top_p = f.top_p, p.min_p = f.min_p, p.top_k = f.top_k;
      p.seed = 1000 + static_cast<uint64_t>(r);
      c.seq_lens[r] = 17 + r;
      std::copy_n(logits[r / filters].begin(), vocab, c.logits.begin() + int64_t{r} * vocab);
    }
    c.run();
    for (int32_t r = 0; r < kinds * filters; ++r) {
      expect_drawn(order_of(logits[r / filters], c.params[r]), c.tokens[r],
                   uniform_draw(c.params[r].seed, static_cast<uint64_t>(c.seq_lens[r])),
                   "vocabulary " + std::to_string(vocab) + ", logits " +
                       std::to_string(r / filters) + ", filters " + std::to_string(r % filters));
    }
  }
};

TEST_P(SampleFiltersTest, DrawsAreThoseOfASortOfFewTokens) {
  for (const int32_t vocab : {1, 2, 33, 1023}) check(vocab, 1);
}

TEST_P(SampleFiltersTest, DrawsAreThoseOfASortOfManyTokens) {
  check(5003, 3);
  check(32003, 1);
}

#if !defined(REFRAIN_TSAN) && !defined(REFRAIN_ASAN)  // the same code as of a small one
TEST_P(SampleFiltersTest, DrawsAreThoseOfASortOfALargeVocabulary) { check(128256, 4); }
#endif

TEST_P(SampleFiltersTest, ARowDrawsTheSameTokenInEveryBatch) {
  const int32_t vocab = 2003;
  const auto logits = rows_of_logits(vocab, 11);
  const auto kinds = static_cast<int32_t>(logits.size());
  const auto filters = static_cast<int32_t>(std::size(kFilters));
  const auto fill = [&](SampleCase& c, int32_t at, int32_t row) {
    const Filters& f = kFilters[row % filters];
    SlotParams& p = c.params[at];
    p.temperature = row % 3 == 0 ? 0 : f.temperature;  // greedy among random ones
    p.top_p = f.top_p, p.min_p = f.min_p, p.top_k = f.top_k;
    p.seed = 3000 + static_cast<uint64_t>(row);
    c.seq_lens[at] = 5 + row;
    std::copy_n(logits[row % kinds].begin(), vocab, c.logits.begin() + int64_t{at} * vocab);
  };
  std::vector<int32_t> alone;
  for (int32_t r = 0; r < 130; ++r) {
    SampleCase c(harness(), 1, vocab);
    fill(c, 0, r);
    c.run();
    alone.push_back(c.tokens[0]);
  }
  for (const int32_t rows : {17, 130}) {
    SampleCase c(harness(), rows, vocab, 2);
    for (int32_t r = 0; r < rows; ++r) fill(c, rows - 1 - r, r);
    c.run();
    for (int32_t r = 0; r < rows; ++r) EXPECT_EQ(c.tokens[rows - 1 - r], alone[r]) << rows << r;
  }
}

TEST_P(SampleFiltersTest, LogprobsListTheBestTokensOfARandomRow) {
  const int32_t vocab = 3001;
  const auto logits = rows_of_logits(vocab, 5);
  const auto rows = static_cast<int32_t>(logits.size());
  SampleCase c(harness(), rows, vocab);
  for (int32_t r = 0; r < rows; ++r) {
    c.params[r].temperature = 0.7f;
    c.params[r].top_p = 0.9f;
    c.params[r].num_logprobs = kMaxLogprobs;
    std::copy_n(logits[r].begin(), vocab, c.logits.begin() + int64_t{r} * vocab);
  }
  c.run();
  for (int32_t r = 0; r < rows; ++r) {
    std::vector<Candidate> best(kMaxLogprobs);
    top_tokens(logits[r].data(), vocab, kMaxLogprobs, best.data());
    double sum = 0;
    for (const float x : logits[r]) sum += x > -kInfinity ? std::exp(double{x} - best[0].logit) : 0;
    const double log_sum = best[0].logit + std::log(sum);
    EXPECT_NEAR(c.logprobs[r], logits[r][c.tokens[r]] - log_sum, 2e-5) << r;
    for (int i = 0; i < kMaxLogprobs; ++i) {
      EXPECT_EQ(c.top_tokens[r * kMaxLogprobs + i], best[i].token) << r << ' ' << i;
      const float got = c.top_logprobs[r * kMaxLogprobs + i];
      if (best[i].logit == -kInfinity) {
        EXPECT_EQ(got, -kInfinity);
      } else {
        EXPECT_NEAR(got, best[i].logit - log_sum, 2e-5) << r << ' ' << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, SampleFiltersTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
