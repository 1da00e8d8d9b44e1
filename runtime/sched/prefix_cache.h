#pragma once
// Finds full KV blocks that already hold the beginning of a prompt. A block is known by the chain
// (salt, the tokens of all blocks up to it): an entry names its parent entry and holds its tokens,
// which a lookup compares, so that no hash collision can hand out another prompt's cache. Owned by
// the Scheduler; forgets a block when the BlockManager reuses it.

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/sched/block_manager.h"

namespace refrain {

class PrefixCache {
 public:
  // Where a sequence's chain stands: the entry of its last cached block.
  using EntryId = uint64_t;
  static constexpr EntryId kRoot = 0;

  PrefixCache(BlockManager& blocks, int32_t block_size);  // installs itself as evict handler
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Cached blocks that some tokens begin with. Holds no reference: who keeps it extends it again
  // before its use, which drops what was evicted since.
  struct Match {
    std::vector<BlockId> blocks;
    std::vector<EntryId> entries;  // of these blocks
    uint64_t evictions = 0;        // of the cache when it was extended last
    EntryId last() const { return entries.empty() ? kRoot : entries.back(); }
  };
  // Makes `match`, an empty one or an earlier one of the same salt and tokens, the longest run of
  // cached blocks that `tokens` begins with, of at most `max_tokens` tokens. What it holds already
  // is not hashed again.
  void extend(const std::string& salt, std::span<const TokenId> tokens, int64_t max_tokens,
              Match& match) const;

  // Publishes `block`, which holds `tokens` (one full block) after `parent`. Returns the entry for
  // the next block: an equal one that is there already keeps its own block.
  EntryId insert(const std::string& salt, EntryId parent, std::span<const TokenId> tokens,
                 BlockId block);

  // Nobody finds this block any more, nor, through it, those after it. One that is not cached:
  // no-op.
  void forget(BlockId block);

  size_t size() const { return by_block_.size(); }
  uint64_t lookups() const { return lookups_; }  // blocks of tokens hashed by extend, in all

 private:
  struct Entry {
    EntryId id = 0;
    EntryId parent = kRoot;
    BlockId block = kReservedBlock;
    std::string salt;  // of a first block; empty in the others, whose parent implies it
    std::vector<TokenId> tokens;
  };
  using Map = std::unordered_multimap<uint64_t, Entry>;

  const Entry* lookup(const std::string& salt, EntryId parent,
                      std::span<const TokenId> tokens) const;
  void evict(BlockId block);
  void drop_evicted(Match& match) const;

  BlockManager& blocks_;
  size_t block_size_;
  EntryId next_id_ = 1;
  uint64_t evictions_ = 0;
  mutable uint64_t lookups_ = 0;
  Map entries_;  // by hash of (salt, parent, tokens)
  std::unordered_map<BlockId, Map::iterator> by_block_;
};

}  // namespace refrain
