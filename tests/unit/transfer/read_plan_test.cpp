#include "worker/transfer/read_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/unit/transfer/shards.h"

namespace refrain::worker {
namespace {

constexpr int kThere = 1, kHere = 2;  // salts

std::vector<ipc::KvBlocks> blocks() { return {{{1, 2, 5}, {3, 4, 2}}, {{6}, {1}}}; }

// Whatever the numbers of ranks on both sides, every rank gets exactly its units of these blocks.
TEST(ReadPlan, JoinsGroupsOfAnyNumbersOfRanks) {
  for (int from = 1; from <= 5; ++from) {
    for (int to = 1; to <= 5; ++to) {
      std::vector<std::unique_ptr<Shard>> there;
      std::vector<ipc::KvExport> exports;
      for (int rank = 0; rank < from; ++rank) {
        there.push_back(std::make_unique<Shard>(Shape{}, rank, from, kThere));
        exports.push_back(export_of(there.back()->memory));
      }
      for (int rank = 0; rank < to; ++rank) {
        Shard here(Shape{}, rank, to, kHere);
        const auto plan = plan_reads(here.memory, rank, exports, blocks());
        ASSERT_TRUE(plan.has_value()) << plan.error().message;
        for (size_t other = 0; other < plan->size(); ++other)
          for (const Read& read : (*plan)[other])
            std::memcpy(read.to, there[other]->memory.regions[read.region] + read.offset,
                        read.bytes);
        EXPECT_TRUE(here.holds(0, 3, 3, kThere, 1)) << from << " to " << to << " rank " << rank;
        EXPECT_TRUE(here.holds(0, 3, 4, kThere, 2));
        EXPECT_TRUE(here.holds(0, 3, 2, kThere, 5));
        EXPECT_TRUE(here.holds(3, 1, 1, kThere, 6));
        EXPECT_TRUE(here.holds(0, 3, 1, kHere, 1)) << "a block that was not named was written";
        EXPECT_TRUE(here.holds(0, 3, 5, kHere, 5));
        EXPECT_TRUE(here.holds(3, 1, 3, kHere, 3));
      }
    }
  }
}

TEST(ReadPlan, WholeNeighboursAreOneRead) {
  Shard there(Shape{}, 0, 1, kThere), here(Shape{}, 0, 1, kHere);
  const auto plan =
      plan_reads(here.memory, 0, {export_of(there.memory)}, {{{1, 2, 3}, {4, 5, 6}}, {}});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->at(0).size(), 3u) << "one a layer";
}

TEST(ReadPlan, UnitsThatAllHaveAreAskedOfDifferentRanks) {
  Shard a(Shape{}, 0, 2, kThere), b(Shape{}, 1, 2, kThere), here(Shape{}, 1, 2, kHere);
  const auto plan =
      plan_reads(here.memory, 1, {export_of(a.memory), export_of(b.memory)}, {{{1}, {1}}, {}});
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->at(0).empty()) << "rank 1 has all that rank 1 needs";
}

TEST(ReadPlan, RefusesWhatDoesNotFit) {
  Shard there(Shape{}, 0, 1, kThere), here(Shape{}, 0, 1, kHere);
  const auto error = [&](const ipc::KvExport& from, const std::vector<ipc::KvBlocks>& of) {
    const auto plan = plan_reads(here.memory, 0, {from}, of);
    return plan.has_value() ? std::string() : plan.error().message;
  };
  const ipc::KvExport good = export_of(there.memory);
  EXPECT_EQ(error(good, blocks()), "");
  EXPECT_NE(error(good, {{{1}, {7}}, {}}).find("block 1 to 7"), std::string::npos);
  EXPECT_NE(error(good, {{{0}, {1}}, {}}).find("block 0 to 1"), std::string::npos);
  EXPECT_NE(error(good, {{{1}, {1}}}), "");
  ipc::KvExport other = good;
  other.states[0].parts[0].unit_bytes *= 2;
  EXPECT_NE(error(other, blocks()).find("other layers or parts"), std::string::npos);
  other = good;
  other.states[0].parts[2].units = 3;
  EXPECT_NE(error(other, blocks()).find("unit 3 of v"), std::string::npos);
}

}  // namespace
}  // namespace refrain::worker
