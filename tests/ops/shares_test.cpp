// The division of tiles over warps that attention_stream relies on: a request and head that
// several warps share ends when all from the owner of its first tile to that of its last have come.
#include "kernels/cuda/shares.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace refrain::kernels {
namespace {

constexpr int64_t kH200Workers = 132 * 8;

// What the warps of attention_stream do: each walks its share, unit by unit, and counts itself in
// at the first worker of a unit that others share. Every unit ends once, no count is left.
void expect_all_units_end(const std::vector<int64_t>& unit_tiles, int64_t workers) {
  std::vector<int64_t> start = {0};
  for (const int64_t tiles : unit_tiles) start.push_back(start.back() + tiles);
  const Shares shares(start.back(), workers);
  std::vector<int> ends(unit_tiles.size()), arrivals(static_cast<size_t>(workers));
  size_t unit = 0;
  int64_t expected = 0;
  for (int64_t worker = 0; worker < workers; ++worker) {
    ASSERT_EQ(shares.first(worker), expected) << "worker " << worker << " of " << workers;
    expected = shares.first(worker + 1);
    ASSERT_GE(expected, shares.first(worker));
    for (int64_t tile = shares.first(worker); tile < expected;) {
      while (start[unit + 1] <= tile) ++unit;
      const int32_t first = shares.owner(start[unit]), last = shares.owner(start[unit + 1] - 1);
      ASSERT_TRUE(first <= worker && worker <= last)
          << "worker " << worker << " of " << workers << " has tile " << tile << " of "
          << start.back() << ", whose unit belongs to " << first << " to " << last;
      int& come = arrivals[static_cast<size_t>(first)];
      if (++come == last - first + 1) {
        ++ends[unit];
        come = 0;
      }
      tile = std::min(expected, start[unit + 1]);
    }
  }
  ASSERT_EQ(expected, start.back());
  for (size_t u = 0; u < ends.size(); ++u) {
    ASSERT_EQ(ends[u], unit_tiles[u] > 0 ? 1 : 0)
        << "unit " << u << " of " << start.back() << " tiles over " << workers << " workers";
  }
  ASSERT_EQ(std::count(arrivals.begin(), arrivals.end(), 0), workers);
}

TEST(Shares, EveryPieceBelongsToTheWorkerWhoseShareHoldsIt) {
  for (const int64_t workers : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{64}, kH200Workers}) {
    for (int64_t total = 0; total <= 2 * workers + 3; ++total) {
      const Shares shares(total, workers);
      ASSERT_EQ(shares.first(0), 0);
      ASSERT_EQ(shares.first(workers), total);
      for (int64_t piece = 0; piece < total; ++piece) {
        const int64_t owner = shares.owner(piece);
        ASSERT_TRUE(owner >= 0 && owner < workers);
        ASSERT_TRUE(shares.first(owner) <= piece && piece < shares.first(owner + 1))
            << "piece " << piece << " of " << total << ", " << workers << " workers";
      }
    }
  }
}

TEST(Shares, WorkersBetweenTwoOwnersHavePiecesAndSharesAreEven) {
  for (const int64_t workers : {int64_t{1}, int64_t{3}, int64_t{64}, kH200Workers}) {
    for (const int64_t total : {int64_t{1}, int64_t{2}, int64_t{63}, int64_t{65}, workers - 1,
                                workers, workers + 1, 17 * workers + 5, int64_t{1} << 33}) {
      if (total < 1) continue;
      const Shares shares(total, workers);
      for (int64_t w = 0; w < workers; ++w) {
        const int64_t count = shares.first(w + 1) - shares.first(w);
        const int64_t least = w <= shares.owner(total - 1) ? 1 : 0;
        ASSERT_GE(count, least) << "worker " << w << " of " << workers << ", " << total;
        ASSERT_LE(count, (total + workers - 1) / workers);
      }
    }
  }
}

TEST(Shares, EveryUnitEndsOnceWhateverRowsHeadsAndLengths) {  // CG-27, CG-36
  for (const int64_t workers : {int64_t{1}, int64_t{5}, int64_t{78} * 8, kH200Workers}) {
    for (const int rows : {1, 2, 3, 5, 16, 64, 127, 128, 256, 512}) {
      for (const int heads : {1, 2, 3, 4, 8}) {
        for (const int64_t tiles : {1, 2, 3, 5, 8, 33}) {
          expect_all_units_end(std::vector<int64_t>(static_cast<size_t>(rows * heads), tiles),
                               workers);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Shares, EveryUnitEndsOnceForRandomLengths) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto rows = static_cast<int64_t>(1 + random() % (round % 2 == 0 ? 8 : 512));
    const int64_t heads = int64_t{1} << random() % 4;
    const int64_t longest = int64_t{1} << random() % 8;
    std::vector<int64_t> units;
    for (int64_t row = 0; row < rows; ++row) {
      const auto tiles = static_cast<int64_t>(random() % static_cast<unsigned>(longest + 1));
      units.insert(units.end(), static_cast<size_t>(heads), tiles);
    }
    expect_all_units_end(units,
                         round % 3 == 0 ? static_cast<int64_t>(1 + random() % 2000) : kH200Workers);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace refrain::kernels
