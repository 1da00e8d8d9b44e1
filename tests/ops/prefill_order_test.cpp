// The order in which the blocks of the CUDA prefill kernel take their work.
#include "kernels/cuda/prefill_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace refrain::kernels {
namespace {

TEST(PrefillOrder, EveryUnitBelongsToOneBlockWhoseUnitsGrow) {
  for (const uint32_t blocks : {1u, 2u, 78u, 132u}) {
    for (const int32_t units : {0, 1, 131, 132, 133, 264, 300, 2048}) {
      std::vector<int> taken(static_cast<size_t>(units), 0);
      for (uint32_t block = 0; block < blocks; ++block) {
        int32_t last = -1;
        for (int32_t turn = 0; unit_of_turn(turn, block, blocks) < units; ++turn) {
          const int32_t unit = unit_of_turn(turn, block, blocks);
          EXPECT_GT(unit, last);
          last = unit;
          ++taken[static_cast<size_t>(unit)];
        }
      }
      EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), units) << blocks << " blocks";
    }
  }
}

TEST(PrefillOrder, ShortRowsHaveNoTiles) {
  EXPECT_EQ(tiles_of_row(0, 0, 128), 0);
  EXPECT_EQ(tiles_of_row(4, 4, 128), 0);
  EXPECT_EQ(tiles_of_row(5, 4, 128), 1);
  EXPECT_EQ(tiles_of_row(128, 4, 128), 1);
  EXPECT_EQ(tiles_of_row(129, 4, 128), 2);
}

// One prompt, 32 heads, 132 blocks; a tile of 128 queries costs what the tiles of 128 keys are that
// it sees, and one for its beginning and end.
TEST(PrefillOrder, TheBlocksOfALongPromptEndTogether) {
  for (const int32_t tokens : {2048, 8192}) {
    const int32_t heads = 32, tiles = tiles_of_row(tokens, 4, 128), units = tiles * heads;
    const uint32_t blocks = 132;
    std::vector<int> sums(blocks, 0);
    for (uint32_t block = 0; block < blocks; ++block) {
      for (int32_t turn = 0; unit_of_turn(turn, block, blocks) < units; ++turn) {
        const int32_t tile = tiles - 1 - unit_of_turn(turn, block, blocks) / heads;
        sums[block] += tile + 1 + 1;
      }
    }
    const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / blocks;
    EXPECT_LE(*std::max_element(sums.begin(), sums.end()), mean * (tokens > 4096 ? 1.01 : 1.05));
  }
}

}  // namespace
}  // namespace refrain::kernels
