#include "runtime/sched/block_manager.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/check.h"
#include "runtime/sched/prefix_cache.h"

namespace refrain {
namespace {

TEST(BlockManager, NeverGivesOutTheReservedBlock) {
  BlockManager blocks(5);
  std::set<BlockId> ids;
  std::vector<BlockRef> held;
  while (auto block = blocks.allocate()) {
    ids.insert(block->id());
    held.push_back(std::move(*block));
  }
  EXPECT_EQ(ids, (std::set<BlockId>{1, 2, 3, 4}));
  EXPECT_EQ(blocks.num_usable(), 4);
  EXPECT_EQ(blocks.num_free(), 0);
}

TEST(BlockManager, FreesBlocksWhenLastReferenceDrops) {
  BlockManager blocks(3);
  BlockRef first = *blocks.allocate();
  const BlockId id = first.id();
  BlockRef second = blocks.share(id);
  EXPECT_EQ(blocks.ref_count(id), 2);
  first.reset();
  EXPECT_EQ(blocks.num_free(), 1);
  second = BlockRef();
  EXPECT_EQ(blocks.num_free(), 2);
  EXPECT_EQ(blocks.ref_count(id), 0);
}

TEST(BlockManager, AMovedReferenceIsReleasedOnce) {
  BlockManager blocks(3);
  BlockRef first = *blocks.allocate();
  BlockRef second = std::move(first);
  first.reset();
  EXPECT_EQ(blocks.num_free(), 1);
  second.reset();
  second.reset();
  EXPECT_EQ(blocks.num_free(), 2);
}

TEST(BlockManager, TakesEmptyBlocksBeforeCachedOnesAndTheOldestCachedFirst) {
  BlockManager blocks(4);
  std::vector<BlockId> evicted;
  blocks.on_evict([&](BlockId id) { evicted.push_back(id); });
  BlockRef a = *blocks.allocate(), b = *blocks.allocate(), c = *blocks.allocate();
  const BlockId id_a = a.id(), id_b = b.id(), id_c = c.id();
  blocks.set_cached(id_a);
  blocks.set_cached(id_b);
  b.reset();
  a.reset();
  c.reset();
  EXPECT_EQ((c = *blocks.allocate()).id(), id_c);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ((b = *blocks.allocate()).id(), id_b);
  EXPECT_EQ((a = *blocks.allocate()).id(), id_a);
  EXPECT_EQ(evicted, (std::vector<BlockId>{id_b, id_a}));
}

TEST(BlockManager, ASharedFreeBlockKeepsItsContents) {
  BlockManager blocks(3);
  BlockRef a = *blocks.allocate();
  const BlockId id = a.id();
  blocks.set_cached(id);
  a.reset();
  a = blocks.share(id);
  BlockRef b = *blocks.allocate();
  EXPECT_NE(b.id(), id);
  EXPECT_FALSE(blocks.allocate().has_value());
}

TEST(BlockManager, RefusesBlocksThatDoNotExist) {
  BlockManager blocks(3);
  EXPECT_THROW(blocks.share(0), FatalError);
  EXPECT_THROW(blocks.share(3), FatalError);
  EXPECT_THROW(blocks.share(1), FatalError);  // free and without contents
  EXPECT_THROW(BlockManager(1), FatalError);
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  std::vector<BlockRef> publish(const std::string& salt, const std::vector<TokenId>& tokens) {
    std::vector<BlockRef> held;
    PrefixCache::EntryId chain = PrefixCache::kRoot;
    for (size_t at = 0; at + 2 <= tokens.size(); at += 2) {
      held.push_back(*blocks.allocate());
      chain = cache.insert(salt, chain, std::span(tokens).subspan(at, 2), {held.back().id()});
    }
    return held;
  }
  size_t hits(const std::string& salt, const std::vector<TokenId>& tokens, int64_t most = 100) {
    return find(salt, tokens, most).hits;
  }
  PrefixCache::Match find(const std::string& salt, const std::vector<TokenId>& tokens,
                          int64_t most) const {
    PrefixCache::Match match;
    cache.extend(salt, tokens, most, match);
    return match;
  }
  BlockManager blocks{8};
  PrefixCache cache{{{.blocks = &blocks}}, 2};
};

TEST_F(PrefixCacheTest, FindsTheLongestRunOfFullBlocks) {
  const auto held = publish("", {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(hits("", {1, 2, 3, 4, 5, 6, 7}), 3u);
  EXPECT_EQ(hits("", {1, 2, 3, 4, 5}), 2u);
  EXPECT_EQ(hits("", {1, 2, 9, 4, 5, 6}), 1u);
  EXPECT_EQ(hits("", {3, 4}), 0u);  // a later block is no beginning
  EXPECT_EQ(hits("", {1, 2, 3, 4}, 3), 1u);
  EXPECT_EQ(find("", {1, 2, 3, 4}, 4).blocks[1][0], held[1].id());
}

// Of a draft head: what a block keeps depends on the token after it.
TEST_F(PrefixCacheTest, WithALookaheadABlockIsKnownByTheTokenAfterItToo_CG40) {
  BlockManager of_head{8};
  PrefixCache ahead{{{.blocks = &of_head}}, 2, 1};
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  std::vector<BlockRef> held;
  PrefixCache::EntryId chain = PrefixCache::kRoot;
  for (const size_t block : {0, 1}) {
    held.push_back(*of_head.allocate());
    chain = ahead.insert("", chain, ahead.block_tokens(tokens, block), {held.back().id()});
  }
  EXPECT_TRUE(ahead.block_tokens(tokens, 2).empty()) << "the token after it is not known";
  const auto hits = [&](const std::vector<TokenId>& wanted) {
    PrefixCache::Match match;
    ahead.extend("", wanted, 100, match);
    return match.hits;
  };
  EXPECT_EQ(hits({1, 2, 3, 4, 5}), 2u);
  EXPECT_EQ(hits({1, 2, 3, 4, 6}), 1u);
  EXPECT_EQ(hits({1, 2, 3, 4}), 1u);
  EXPECT_EQ(hits({9, 2, 3, 4, 5}), 0u) << "the first token counts";
}

TEST_F(PrefixCacheTest, AnotherSaltSharesNothing) {
  const auto held = publish("alice", {1, 2, 3, 4});
  EXPECT_EQ(hits("alice", {1, 2, 3, 4}), 2u);
  EXPECT_EQ(hits("bob", {1, 2, 3, 4}), 0u);
  EXPECT_EQ(hits("", {1, 2, 3, 4}), 0u);
}

TEST_F(PrefixCacheTest, ForgetsABlockThatIsReused) {
  publish("", {1, 2, 3, 4});  // free at once, still cached
  EXPECT_EQ(hits("", {1, 2, 3, 4}), 2u);
  std::vector<BlockRef> all;
  while (auto block = blocks.allocate()) all.push_back(std::move(*block));
  EXPECT_EQ(hits("", {1, 2, 3, 4}), 0u);
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(PrefixCacheTest, AnEqualBlockKeepsTheFirstEntry) {
  const auto first = publish("", {1, 2, 3, 4});
  const auto second = publish("", {1, 2, 3, 4});
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(find("", {1, 2}, 2).blocks[0][0], first[0].id());
}

// The head of a blocked queue is looked up before each step.
TEST_F(PrefixCacheTest, AKeptMatchIsNotHashedAgainAndFollowsTheCache) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  auto held = publish("", {1, 2, 3, 4});
  PrefixCache::Match match = find("", tokens, 6);
  ASSERT_EQ(match.blocks.size(), 2u);
  const uint64_t before = cache.lookups();
  cache.extend("", tokens, 6, match);
  EXPECT_EQ(cache.lookups() - before, 1u) << "only the block that was not there is looked for";
  EXPECT_EQ(match.blocks.size(), 2u);
  const auto more = publish("", tokens);
  cache.extend("", tokens, 6, match);
  EXPECT_EQ(match.blocks.size(), 3u);
  EXPECT_EQ(match.blocks.back()[0], more.back().id());
  // The second block is reused, and published again with other contents: the match ends before it.
  const BlockId lost = held[1].id();
  held.pop_back();
  std::vector<BlockRef> all;
  while (auto block = blocks.allocate()) all.push_back(std::move(*block));
  cache.insert("", PrefixCache::kRoot, std::vector<TokenId>{9, 9}, {lost});
  cache.extend("", tokens, 6, match);
  ASSERT_EQ(match.hits, 1u);
  EXPECT_EQ(match.blocks[0][0], held[0].id());
  EXPECT_EQ(match.last(), find("", tokens, 2).last());
}

}  // namespace
}  // namespace refrain
