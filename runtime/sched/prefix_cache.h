#pragma once
// Finds full blocks of tokens whose states are kept already at the beginning of a prompt. A block
// is known by the chain (salt, the tokens of all blocks up to it): an entry names its parent entry
// and holds its tokens, which a lookup compares, so that no hash collision can hand out another
// prompt's cache. An entry has a block of each state group, or lacks it where the group's memory
// was used again; tokens are a hit only where every group can resume after them. Owned by
// BlockPools.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/ids.h"
#include "runtime/sched/block_manager.h"

namespace refrain {

inline constexpr size_t kMaxGroups = 4;  // state groups of a model
// A block of each group; kReservedBlock: none.
using BlockOfGroups = std::array<BlockId, kMaxGroups>;

class PrefixCache {
 public:
  // Where a sequence's chain stands: the entry of its last cached block.
  using EntryId = uint64_t;
  static constexpr EntryId kRoot = 0;

  // A state group: the memory that its blocks lie in, and how far its layers look back.
  struct Group {
    BlockManager* blocks = nullptr;  // null: nothing of it is kept, so nothing is ever a hit
    ipc::StateKind kind = ipc::StateKind::kPaged;
    int64_t window = 0;
  };
  // Installs itself as evict handler. `lookahead`: BlockPoolsOptions.
  PrefixCache(std::vector<Group> groups, int32_t block_size, int32_t lookahead = 0);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Cached blocks that some tokens begin with. Holds no reference: who keeps it extends it again
  // before its use, which drops what was evicted since.
  struct Match {
    std::vector<EntryId> entries;
    std::vector<BlockOfGroups> blocks;  // of these entries
    size_t hits = 0;                    // after so many of them every group can resume
    uint64_t changes = 0;               // of the cache when it was extended last
    EntryId last() const { return hits == 0 ? kRoot : entries[hits - 1]; }
  };
  // Makes `match`, an empty one or an earlier one of the same salt and tokens, the longest run of
  // cached blocks that `tokens` begins with, of at most `max_tokens` tokens. What it holds already
  // is not hashed again.
  void extend(const std::string& salt, std::span<const TokenId> tokens, int64_t max_tokens,
              Match& match) const;
  // What a block is known by beside its parent: its tokens, and those of the lookahead. Empty: they
  // are not all there.
  std::span<const TokenId> block_tokens(std::span<const TokenId> tokens, size_t block) const;
  // Of so many blocks of tokens, the first whose states the group needs to resume after them.
  size_t first_needed(size_t group, size_t num_blocks) const;

  // Publishes the blocks that hold the states of `tokens` (block_tokens) after `parent`. Returns
  // the entry for the next block: an equal one that is there already keeps its own blocks and takes
  // those that it lacks.
  EntryId insert(const std::string& salt, EntryId parent, std::span<const TokenId> tokens,
                 const BlockOfGroups& blocks);

  // Nobody finds this block of a group any more, nor, through it, those after it. One that is not
  // cached: no-op.
  void forget(size_t group, BlockId block);

  size_t size() const { return entries_.size(); }
  uint64_t lookups() const { return lookups_; }  // blocks of tokens hashed by extend, in all

 private:
  struct Entry {
    EntryId id = 0;
    EntryId parent = kRoot;
    BlockOfGroups blocks{};
    size_t place = 0;  // of its tokens
    std::string salt;  // of a first block; empty in the others, whose parent implies it
  };
  using Map = std::unordered_multimap<uint64_t, Entry>;

  bool is_of(const Entry& entry, const std::string& salt, EntryId parent,
             std::span<const TokenId> tokens) const;
  size_t keep(std::span<const TokenId> tokens);
  const Entry* find(EntryId id, const BlockOfGroups& blocks) const;
  void evict(size_t group, BlockId block);
  void refresh(Match& match) const;
  bool can_resume(const Match& match, size_t num_blocks) const;
  bool add_blocks(Map::iterator at, const BlockOfGroups& blocks);
  Map::iterator& entry_of(size_t group, BlockId block) {
    return by_block_[group][static_cast<size_t>(block)];
  }
  bool is_cached(size_t group, BlockId block) const {
    const auto at = static_cast<size_t>(block);
    return at < by_block_[group].size() && by_block_[group][at] != entries_.end();
  }

  std::vector<Group> groups_;
  size_t block_size_;
  size_t entry_tokens_;  // that it is known by: those of a block, and the lookahead
  EntryId next_id_ = 1;
  uint64_t changes_ = 0;
  mutable uint64_t lookups_ = 0;
  Map entries_;                  // by hash of (salt, parent, tokens)
  std::vector<TokenId> tokens_;  // of the entries, entry_tokens_ at each place
  std::vector<size_t> free_places_;
  // Of each group: the entry of each of its blocks, or the end where the block is not cached.
  std::vector<std::vector<Map::iterator>> by_block_;
};

}  // namespace refrain
