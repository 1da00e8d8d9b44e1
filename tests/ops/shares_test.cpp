// The division of tiles over blocks and warps that attention_stream relies on: a request and head
// that several warps share ends when all from the owner of its first tile to that of its last that
// have tiles have come.
#include "kernels/cuda/shares.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace refrain::kernels {
namespace {

constexpr int32_t kH200Blocks = 132, kWarps = 8;
constexpr int64_t kH200Workers = int64_t{kH200Blocks} * kWarps;

// What make_plan does.
std::vector<int32_t> bounds_of(const std::vector<int64_t>& start, int32_t blocks, int64_t near) {
  const Shares even(start.back(), blocks);
  std::vector<int32_t> bounds;
  for (int32_t b = 0; b <= blocks; ++b) {
    int64_t bound = even.first(b);
    if (bound < start.back()) {
      const auto next = std::upper_bound(start.begin(), start.end(), bound);
      bound = at_unit(bound, bound - *(next - 1), *next - *(next - 1), near);
    }
    bounds.push_back(static_cast<int32_t>(bound));
  }
  return bounds;
}

// What the warps of attention_stream do: each walks its share, unit by unit, and counts itself in
// at the first of the block's warps that share the unit; the last of them counts the block in at
// the unit's first. Every unit ends once, no count is left.
void expect_all_units_end(const std::vector<int64_t>& unit_tiles, int32_t blocks, int64_t near) {
  std::vector<int64_t> start = {0};
  for (const int64_t tiles : unit_tiles) start.push_back(start.back() + tiles);
  const std::vector<int32_t> bounds = bounds_of(start, blocks, near);
  ASSERT_EQ(bounds.front(), 0);
  ASSERT_EQ(bounds.back(), start.back());
  const BlockShares shares{bounds.data(), kWarps};
  const int64_t workers = int64_t{blocks} * kWarps;
  std::vector<int> ends(unit_tiles.size()), arrivals(static_cast<size_t>(blocks));
  std::vector<std::array<int, kWarps + 1>> here(static_cast<size_t>(blocks));
  size_t unit = 0;
  int64_t expected = 0;
  for (int32_t worker = 0; worker < workers; ++worker) {
    const int32_t block = worker / kWarps;
    ASSERT_EQ(shares.first(block, worker % kWarps), expected) << "worker " << worker;
    expected = shares.first(block, worker % kWarps + 1);
    for (int64_t tile = shares.first(block, worker % kWarps); tile < expected;) {
      while (start[unit + 1] <= tile) ++unit;
      ASSERT_EQ(shares.owner(tile, block), worker) << "tile " << tile << " of " << start.back();
      const int32_t first = shares.owner(start[unit], block);
      const int32_t last = shares.owner(start[unit + 1] - 1, block);
      ASSERT_TRUE(first <= worker && worker <= last)
          << "worker " << worker << " of " << workers << " has tile " << tile << " of "
          << start.back() << ", whose unit belongs to " << first << " to " << last;
      const int32_t first_here = std::max(first, block * kWarps);
      const int32_t last_here = std::min(last, shares.last(block));
      ASSERT_TRUE(first_here <= worker && worker <= last_here);
      const int32_t first_block = first / kWarps, last_block = last / kWarps;
      int& warps = here[static_cast<size_t>(block)]
                       [static_cast<size_t>(first < first_here ? kWarps : first % kWarps)];
      if (++warps == last_here - first_here + 1) {
        warps = 0;
        int& come = arrivals[static_cast<size_t>(first_block)];
        if (++come == last_block - first_block + 1) {
          ++ends[unit];
          come = 0;
        }
      }
      tile = std::min(expected, start[unit + 1]);
    }
  }
  ASSERT_EQ(expected, start.back());
  for (size_t u = 0; u < ends.size(); ++u) {
    ASSERT_EQ(ends[u], unit_tiles[u] > 0 ? 1 : 0)
        << "unit " << u << " of " << start.back() << " tiles over " << workers << " workers";
  }
  ASSERT_EQ(std::count(arrivals.begin(), arrivals.end(), 0), blocks);
  for (const auto& counts : here)
    ASSERT_EQ(std::count(counts.begin(), counts.end(), 0), kWarps + 1);
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

TEST(BlockShares, EveryUnitEndsOnceWhateverRowsHeadsAndLengths) {  // CG-27, CG-36
  for (const int32_t blocks : {1, 5, 78, kH200Blocks}) {
    for (const int rows : {1, 2, 3, 5, 16, 64, 127, 128, 256, 512}) {
      for (const int heads : {1, 2, 3, 4, 8}) {
        for (const int64_t tiles : {1, 2, 3, 5, 8, 20, 33, 70}) {
          const std::vector<int64_t> units(static_cast<size_t>(rows * heads), tiles);
          expect_all_units_end(units, blocks, 16);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(BlockShares, EveryUnitEndsOnceForRandomLengths) {
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
                         round % 3 == 0 ? static_cast<int32_t>(1 + random() % 250) : kH200Blocks,
                         static_cast<int64_t>(random() % 3 * 8));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(BlockShares, ABlocksShareEndsWithAUnitThatEndsNearIt) {
  EXPECT_EQ(at_unit(100, 0, 20, 16), 100);
  EXPECT_EQ(at_unit(100, 10, 20, 16), 90);
  EXPECT_EQ(at_unit(100, 11, 20, 16), 109);
  EXPECT_EQ(at_unit(100, 16, 64, 16), 84);
  EXPECT_EQ(at_unit(100, 17, 64, 16), 100);
  EXPECT_EQ(at_unit(100, 48, 64, 16), 116);
  EXPECT_EQ(at_unit(100, 47, 64, 16), 100);
}

}  // namespace
}  // namespace refrain::kernels
