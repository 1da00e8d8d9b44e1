// The choice among a row's tokens (sample_select.cuh) by a team of one host thread against a sort
// with the same integer weights: the very same token, whatever ties and however short the list.
#include "kernels/cuda/sample_select.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace refrain::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <int kList>
struct OneThread {
  static constexpr int kItems = kBins;
  static constexpr int kListTokens = kList;
  static constexpr int kSureTokens = 1;
  using Shares = BinShares<kItems>;

  std::vector<float> logits;
  std::vector<uint32_t> low = std::vector<uint32_t>(kBins), high = low;
  std::vector<Sum> list;
  int lists = 0;

  template <class F>
  void each_token(F f) const {
    for (size_t i = 0; i < logits.size(); ++i) f(static_cast<int32_t>(i), logits[i]);
  }
  void clear_bins() { std::fill(low.begin(), low.end(), 0), high = low; }
  void add_count(uint32_t bin) { ++low.at(bin); }
  void add_units(uint32_t bin, uint32_t units) {
    low.at(bin) += units & 0xfffu;
    high.at(bin) += units >> 12;
  }
  template <bool kWide>
  Shares read_bins() const {
    Shares shares{};
    for (size_t i = 0; i < kBins; ++i) shares.own[i] = low[i] + (kWide ? Sum{high[i]} << 12 : 0);
    return shares;
  }
  static uint32_t item(int j) { return static_cast<uint32_t>(j); }
  void scan(Shares& shares) const {
    shares.before = shares.total = 0;
    for (const Sum own : shares.own) shares.total += own;
  }
  BinHit find(const Shares& shares, Sum needed) const {
    Sum before = 0;
    for (uint32_t i = 0; i < kBins; ++i) {
      if (needed >= 1 && needed <= before + shares.own[i]) return {i, before, shares.own[i]};
      before += shares.own[i];
    }
    ADD_FAILURE() << needed << " is asked for, not in 1 to " << before;
    return {0, 0, 1};
  }
  Sum through(const Shares& shares, uint32_t index) const {
    Sum sum = 0;
    for (uint32_t i = 0; i <= index; ++i) sum += shares.own[i];
    return sum;
  }
  void clear_list() { list.clear(), ++lists; }
  void add_to_list(Sum ranked) { list.push_back(ranked); }
  int32_t end_list() const { return static_cast<int32_t>(list.size()); }
  void sort_list(int32_t count) {
    ASSERT_LE(count, kList);
    ASSERT_EQ(static_cast<size_t>(count), list.size());
    std::sort(list.rbegin(), list.rend());
  }
  Sum listed(int32_t i) const { return list.at(static_cast<size_t>(i)); }
  bool leads() const { return true; }
  Found share(const Found& found) const { return found; }
  Sum sum(Sum value) const { return value; }
};

struct Choice {
  int32_t token = -1;
  std::vector<int32_t> kept;  // that could be drawn, ascending
};

Choice by_sort(const std::vector<float>& logits, const Distance& distance, float least,
               const SlotParams& p, double uniform) {
  std::vector<Sum> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= least) order.push_back(ranked(key_of(logits[i]), static_cast<int32_t>(i)));
  }
  std::sort(order.rbegin(), order.rend());
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) {
    const uint32_t key = key_in(order[static_cast<size_t>(p.top_k) - 1]);
    std::erase_if(order, [key](Sum r) { return key_in(r) < key; });
  }
  const auto weight = [&](Sum r) { return weight_of(distance, logit_of(key_in(r))); };
  const auto find = [&](Sum needed, Sum& through) {
    through = 0;
    for (auto r = order.begin(); r != order.end(); ++r) {
      through += weight(*r);
      if (through >= needed) return r;
    }
    ADD_FAILURE() << needed << " is more than all weights";
    return order.begin();
  };
  Sum sum = 0;
  for (const Sum r : order) sum += weight(r);
  if (p.top_p < 1.0f) order.erase(find(needed_of(p.top_p, sum), sum) + 1, order.end());
  Sum through = 0;
  Choice choice{token_of(*find(target_of(uniform, sum) + 1, through)), {}};
  for (const Sum r : order) choice.kept.push_back(token_of(r));
  std::sort(choice.kept.begin(), choice.kept.end());
  return choice;
}

template <class Select>
std::vector<int32_t> kept_by(const Select& select, const std::vector<float>& logits) {
  std::vector<int32_t> kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (logits[i] >= select.least && ranked(key_of(logits[i]), token) >= select.last)
      kept.push_back(token);
  }
  return kept;
}

struct Rows {
  std::mt19937 random{7};
  std::vector<float> draw(int kind, int32_t vocab) {
    std::vector<float> row(static_cast<size_t>(vocab));
    std::normal_distribution<float> normal(0, kind == 1 ? 0.01f : 3.0f);
    for (float& x : row) {
      x = normal(random);
      if (kind == 2) x = std::round(x);                       // many ties
      if (kind == 3) x = 1.5f;                                // all tied
      if (kind == 4) x = random() % 5 == 0 ? x : -kInfinity;  // most of them forbidden
      if (kind == 5) x = random() % 9 == 0 ? std::nanf("") : x;
      if (kind == 6) x = x - 40;
    }
    const size_t one = random() % row.size();
    row[one] = kind == 6 ? 9.0f : kind == 4 || kind == 5 ? 0.0f : row[one];
    return row;
  }
};

template <int kList>
void compare(int32_t vocab, int rounds) {
  Rows rows;
  for (int round = 0; round < rounds; ++round) {
    const int kind = round % 7;
    OneThread<kList> team;
    team.logits = rows.draw(kind, vocab);
    float highest = -kInfinity;
    for (const float x : team.logits) highest = x > highest ? x : highest;
    auto& random = rows.random;
    SlotParams p;
    p.temperature = std::vector<float>{0.1f, 0.8f, 1, 5}[random() % 4];
    p.top_p = std::vector<float>{1, 0.95f, 0.9999f, 0.0001f, 0.5f}[random() % 5];
    p.top_k = std::vector<int32_t>{0, 0, 1, 3, 50, 500, 1 << 20}[random() % 7];
    float least = -std::numeric_limits<float>::max();
    if (random() % 3 == 0) least = highest - 2.0f * p.temperature;
    const Distance distance{highest, kOctavesANat / p.temperature};
    const double uniform = round % 11 == 0 ? 0 : static_cast<uint32_t>(random()) * 0x1.0p-32;
    RowSelect<OneThread<kList>> select{team, distance, least, vocab};
    const Choice sorted = by_sort(team.logits, distance, least, p, uniform);
    const std::string what = "vocabulary " + std::to_string(vocab) + ", list " +
                             std::to_string(kList) + ", round " + std::to_string(round) +
                             ", top-k " + std::to_string(p.top_k) + ", top-p " +
                             std::to_string(p.top_p);
    ASSERT_EQ(select.draw(p, uniform, highest), sorted.token) << what;
    ASSERT_EQ(kept_by(select, team.logits), sorted.kept) << what;
    EXPECT_LE(team.lists, 2 * kDigits + 1);
  }
}

TEST(SampleSelect, DrawsWhatASortDraws) {
  for (const int32_t vocab : {1, 2, 7, 100, 1023, 3001}) {
    compare<1024>(vocab, 400);
    compare<64>(vocab, 400);
    compare<1>(vocab, 200);  // down to the last digit
  }
  compare<1024>(40000, 40);
}

TEST(SampleSelect, PlacesGrowAsLogitsFall) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(200000);
  for (float& x : logits) x = normal(random);
  std::sort(logits.rbegin(), logits.rend());
  for (const float octaves : {0.01f, 1.4426950f, 1.8033688f, 144.0f, 1e5f}) {
    const Distance distance{logits[0], octaves};
    uint32_t before = 0;
    for (const float x : logits) {
      const uint32_t place = place_of(distance.of(x));
      ASSERT_GE(place, before) << x;
      before = place;
    }
  }
}

TEST(SampleSelect, WeightsAreThoseOfDoublePrecision) {
  const Distance distance{12.5f, kOctavesANat / 0.8f};
  for (float x = 12.5f; x > -15; x -= 0.00137f) {
    const double y = double{12.5f - x} * double{distance.octaves};
    const double expected = std::exp2(-y) * kWeightOne;
    const auto got = static_cast<double>(weight_of(distance, x));
    EXPECT_NEAR(got, expected, expected * 4e-6 + 2) << x;
    const uint32_t place = place_of(distance.of(x));
    EXPECT_LT(units_of(distance.of(x), place), 1u << 24);
  }
  EXPECT_EQ(weight_of(distance, 12.5f), static_cast<Sum>(kWeightOne));
  EXPECT_EQ(weight_of(distance, -kInfinity), 0u);
}

}  // namespace
}  // namespace refrain::kernels
