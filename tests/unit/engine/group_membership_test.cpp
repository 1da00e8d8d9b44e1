// Who is in a group: without an endpoint, an executor or a clock.
#include "runtime/engine/group_membership.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

using std::chrono::seconds;

constexpr int32_t kRanks = 2;

ipc::Hello hello_of(int32_t rank, const std::string& held_group = "") {
  ipc::Hello hello;
  hello.build_id = "build";
  hello.model_digest = "digest";
  hello.rank = rank;
  hello.tensor_parallel_size = kRanks;
  hello.pid = 100 + rank;
  hello.host = "here";
  hello.held_group = held_group;
  return hello;
}

ipc::Loaded loaded_of(int64_t blocks, bool kept = false) {
  ipc::Loaded loaded;
  loaded.groups = {{.name = "full_attention", .num_blocks = blocks}};
  loaded.kept = kept;
  return loaded;
}

ipc::Ready ready_of(int64_t blocks) {
  ipc::Ready ready;
  ready.num_blocks = {blocks};
  return ready;
}

class GroupMembershipTest : public ::testing::Test {
 protected:
  GroupMembershipTest() {
    config.block_size = 4;
    config.max_model_len = 64;
  }
  void join_all() {
    for (int32_t rank = 0; rank < kRanks; ++rank)
      members.join("peer-" + std::to_string(rank), hello_of(rank));
  }
  void load_all(int64_t blocks) {
    join_all();
    ASSERT_TRUE(members.loaded(0, loaded_of(blocks), config).has_value());
    ASSERT_TRUE(members.loaded(1, loaded_of(blocks), config).has_value());
  }
  GroupMembership members{{kRanks, "build", "digest"}, 5};
  ipc::WorkerConfig config;
};

using GroupMembers = GroupMembershipTest;

TEST_F(GroupMembers, KnowsItsRanksByPeerAndNamesThem) {
  EXPECT_TRUE(members.empty());
  EXPECT_EQ(members.name_of(1), "rank 1");
  members.join("peer-1", hello_of(1));
  EXPECT_EQ(members.rank_of("peer-1"), 1);
  EXPECT_EQ(members.rank_of("peer-0"), -1);
  EXPECT_EQ(members.names_of({0, 1}), "rank 0, rank 1 (pid 101 on here)");
  EXPECT_EQ(members.missing(), std::vector<int32_t>{0});
  EXPECT_EQ(members.pids(), std::vector<int64_t>{101});
}

TEST_F(GroupMembers, AllAreToldWhereTheRanksAreWhenTheLastHasSaidIt) {
  join_all();
  auto told = members.meet(1, {"memory", "tcp://b:2", "key"});
  ASSERT_TRUE(told);
  EXPECT_FALSE(told->has_value());
  told = members.meet(0, {"memory", "tcp://a:1", "key"});
  ASSERT_TRUE(told && told->has_value());
  ASSERT_EQ((*told)->ranks.size(), 2u);
  EXPECT_EQ((*told)->ranks[0].address, "tcp://a:1");
  EXPECT_EQ((*told)->ranks[1].address, "tcp://b:2");
}

TEST_F(GroupMembers, WhoSaysTwiceWhereItIsLosesTheGroup) {
  join_all();
  ASSERT_TRUE(members.meet(1, {}));
  const auto again = members.meet(1, {});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().ranks, std::vector<int32_t>{1});
}

TEST_F(GroupMembers, EveryGroupHasALaterEpochThanTheOneBefore_R3) {
  join_all();
  EXPECT_EQ(members.epoch(), 5u);
  members.dismiss();
  EXPECT_EQ(members.epoch(), 6u);
  EXPECT_TRUE(members.empty());
  members.outgrow(5);  // long over
  EXPECT_EQ(members.epoch(), 6u);
  members.outgrow(6);
  EXPECT_EQ(members.epoch(), 7u);
}

TEST_F(GroupMembers, RanksThatHoldDifferentGroupsAreMixed_R10) {
  members.join("peer-0", hello_of(0, "group-3"));
  EXPECT_FALSE(members.mixed_with(hello_of(1, "group-3")).has_value());
  const auto mixed = members.mixed_with(hello_of(1));
  ASSERT_TRUE(mixed.has_value());
  EXPECT_NE(mixed->find("holds the graphs of group-3 and rank 1 begins anew"), std::string::npos)
      << *mixed;
}

TEST_F(GroupMembers, IsAdoptedWhenEveryRankKeptItsWeights_R10) {
  join_all();
  ASSERT_TRUE(members.loaded(0, loaded_of(40, true), config).has_value());
  EXPECT_FALSE(members.adopted());
  ASSERT_TRUE(members.loaded(1, loaded_of(40, true), config).has_value());
  EXPECT_TRUE(members.adopted());
}

TEST_F(GroupMembers, AgreesOnTheSmallestCacheWhenAllHaveLoaded) {
  join_all();
  const auto first = members.loaded(1, loaded_of(40), config);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(first->has_value());
  const auto last = members.loaded(0, loaded_of(50), config);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ((**last)[0].num_blocks, 40);
}

TEST_F(GroupMembers, ACacheTooSmallForOneRequestIsForGood) {
  join_all();
  ASSERT_TRUE(members.loaded(0, loaded_of(40), config).has_value());
  const auto agreed = members.loaded(1, loaded_of(16), config);
  ASSERT_FALSE(agreed.has_value());
  EXPECT_EQ(agreed.error().ranks, std::vector<int32_t>{1});
  EXPECT_TRUE(agreed.error().for_good);
  EXPECT_NE(agreed.error().reason.find("holds 60 tokens"), std::string::npos)
      << agreed.error().reason;
}

TEST_F(GroupMembers, CapturesMayLeaveFewerBlocksAndTheLeastIsTheCacheOfAll_CG25) {
  load_all(40);
  const auto first = members.ready(0, ready_of(38));
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(first->has_value());
  const auto last = members.ready(1, ready_of(35));
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ((**last)[0].num_blocks, 35);
}

TEST_F(GroupMembers, ATileOfNoRowsIsAFault) {
  load_all(40);
  ipc::Ready ready = ready_of(38);
  ready.row_tile = 0;
  const auto first = members.ready(0, ready);
  ASSERT_FALSE(first.has_value());
  EXPECT_NE(first.error().reason.find("0 rows are a tile; 1 to 65536"), std::string::npos)
      << first.error().reason;
}

TEST_F(GroupMembers, EveryGroupHasTheBlocksOfTheRankThatHasFewest) {
  join_all();
  const auto loaded = [](int64_t full, int64_t window) {
    ipc::Loaded all = loaded_of(full);
    all.groups.push_back({.name = "sliding_attention", .window = 4, .num_blocks = window});
    return all;
  };
  ASSERT_TRUE(members.loaded(0, loaded(40, 60), config).has_value());
  const auto agreed = members.loaded(1, loaded(50, 45), config);
  ASSERT_TRUE(agreed.has_value() && agreed->has_value());
  EXPECT_EQ((**agreed)[0].num_blocks, 40);
  EXPECT_EQ((**agreed)[1].num_blocks, 45);
}

TEST_F(GroupMembers, RanksWithOtherStateGroupsNeverServe) {
  join_all();
  ASSERT_TRUE(members.loaded(0, loaded_of(40), config).has_value());
  ipc::Loaded other = loaded_of(40);
  other.groups[0].window = 8;
  const auto agreed = members.loaded(1, other, config);
  ASSERT_FALSE(agreed.has_value());
  EXPECT_TRUE(agreed.error().for_good);
  EXPECT_EQ(agreed.error().ranks, std::vector<int32_t>{1});
}

TEST_F(GroupMembers, WhatIsSaidOutOfTurnIsAFault) {
  join_all();
  EXPECT_FALSE(members.ready(0, ready_of(30)).has_value());
  ASSERT_TRUE(members.loaded(0, loaded_of(40), config).has_value());
  EXPECT_FALSE(members.loaded(0, loaded_of(40), config).has_value());
  ASSERT_TRUE(members.loaded(1, loaded_of(40), config).has_value());
  EXPECT_FALSE(members.ready(0, ready_of(41)).has_value());  // more than it was told of
  ASSERT_TRUE(members.ready(0, ready_of(40)).has_value());
  EXPECT_FALSE(members.ready(0, ready_of(40)).has_value());
}

TEST_F(GroupMembers, TheNextGroupAgreesAnew) {
  load_all(40);
  members.dismiss();
  join_all();
  const auto early = members.ready(0, ready_of(30));
  ASSERT_FALSE(early.has_value());
  EXPECT_NE(early.error().reason.find("out of turn"), std::string::npos);
}

TEST_F(GroupMembers, ThreeBadFramesInTenSecondsAreTooMany_R3) {
  join_all();
  const TimePoint begin{};
  EXPECT_FALSE(members.bad_frame(0, begin));
  EXPECT_FALSE(members.bad_frame(0, begin + seconds(1)));
  EXPECT_FALSE(members.bad_frame(1, begin + seconds(1)));
  EXPECT_FALSE(members.bad_frame(0, begin + seconds(11)));  // the first is forgotten
  EXPECT_TRUE(members.bad_frame(0, begin + seconds(11)));
}

}  // namespace
}  // namespace refrain
