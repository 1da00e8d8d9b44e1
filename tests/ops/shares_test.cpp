// The division of tiles over blocks and warps that attention_stream relies on: a request and head
// that several warps share ends when all from the owner of its first tile to that of its last that
// have tiles have come.
#include "kernels/cuda/shares.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

namespace refrain::kernels {
namespace {

constexpr int32_t kH200Blocks = 132, kWarps = 8;
constexpr int64_t kH200Workers = int64_t{kH200Blocks} * kWarps;

// Where blocks' shares begin in the given division, of units that begin at `start`.
std::vector<Bound> division_of(const std::vector<int64_t>& start, int32_t blocks, int division) {
  const int64_t total = start.back();
  const Shares even(total, blocks);
  std::vector<Bound> bounds;
  for (int32_t b = 0; b <= blocks; ++b) {
    const int64_t at = even.first(b);
    if (at == total) {
      bounds.push_back({static_cast<int32_t>(total), false});
      continue;
    }
    const auto next = std::upper_bound(start.begin(), start.end(), at);
    bounds.push_back(
        near_unit(at, at - *(next - 1), *next - *(next - 1), nearness(division, total, blocks)));
  }
  return bounds;
}

int64_t longest(const std::vector<Bound>& bounds, int64_t meeting) {
  int64_t most = 0;
  for (size_t b = 0; b + 1 < bounds.size(); ++b)
    most = std::max(most, share_cost(bounds[b], bounds[b + 1], meeting));
  return most;
}

// What the warps of attention_stream do: each walks its share, unit by unit, and counts itself in
// at the first of the block's warps that share the unit; the last of them counts the block in at
// the unit's first. Every unit ends once, no count is left.
void expect_all_units_end(const std::vector<int64_t>& unit_tiles, int32_t blocks, int division) {
  std::vector<int64_t> start = {0};
  for (const int64_t tiles : unit_tiles) start.push_back(start.back() + tiles);
  std::vector<int32_t> bounds;
  for (const Bound& bound : division_of(start, blocks, division)) {
    bounds.push_back(bound.piece);
    EXPECT_EQ(bound.within, std::ranges::find(start, bound.piece) == start.end());
  }
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
          for (const int division : {0, 3, kDivisions - 1}) {
            expect_all_units_end(units, blocks, division);
            if (testing::Test::HasFatalFailure()) return;
          }
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
                         static_cast<int>(random() % kDivisions));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(BlockShares, ABlocksShareEndsWithAUnitThatEndsNearIt) {
  const auto bound = [](int64_t piece, int64_t pieces) {
    const Bound near = near_unit(100, piece, pieces, 16);
    EXPECT_EQ(Bound::unpacked(near.packed()).piece, near.piece);
    EXPECT_EQ(Bound::unpacked(near.packed()).within, near.within);
    return std::pair(near.piece, near.within);
  };
  EXPECT_EQ(bound(0, 20), std::pair(100, false));
  EXPECT_EQ(bound(10, 20), std::pair(90, false));
  EXPECT_EQ(bound(11, 20), std::pair(109, false));
  EXPECT_EQ(bound(16, 64), std::pair(84, false));
  EXPECT_EQ(bound(17, 64), std::pair(100, true));
  EXPECT_EQ(bound(48, 64), std::pair(116, false));
  EXPECT_EQ(bound(47, 64), std::pair(100, true));
}

// Requests of one length, one or two for each block and some blocks without: shares of whole
// requests are as good as even ones that meet. Few and long requests: blocks must meet.
TEST(BlockShares, ADivisionIsAsShortAsTheRequestsAllow) {
  constexpr int64_t kMeeting = 16;
  const auto shortest = [](int units, int64_t tiles) {
    std::vector<int64_t> start = {0};
    for (int u = 0; u < units; ++u) start.push_back(start.back() + tiles);
    int64_t least = longest(division_of(start, kH200Blocks, 0), kMeeting);
    for (int division = 1; division < kDivisions; ++division)
      least = std::min(least, longest(division_of(start, kH200Blocks, division), kMeeting));
    return least;
  };
  EXPECT_LE(shortest(256, 38), 2 * 38);
  EXPECT_LE(shortest(128, 38), 38);
  EXPECT_LE(shortest(128, 88), 88);
  EXPECT_LE(shortest(512, 57), 4 * 57);
  EXPECT_LE(shortest(16, 2000), 16 * 2000 / kH200Blocks + 1 + kMeeting);
}

}  // namespace
}  // namespace refrain::kernels
