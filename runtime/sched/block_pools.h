#pragma once
// The memory of all state groups of a model, as sequences hold it: a block manager a group, and the
// prefix cache over them. What a sequence asks for it gets of every group, or of none. Owned by the
// Scheduler, on the engine's executor; it outlives every sequence's blocks.

#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/block_manager.h"
#include "runtime/sched/prefix_cache.h"
#include "runtime/sched/sequence.h"

namespace refrain {

struct BlockPoolsOptions {
  std::vector<ipc::StateGroup> groups;  // with the blocks that all ranks have
  int32_t block_size = 16;
  int32_t tokens_a_step = 2048;
  bool prefix_caching = true;
  double watermark = 0.01;  // share of the blocks that admission leaves free for running requests
  int32_t lookahead = 0;    // tokens after a block that what it keeps depends on, too
};

class BlockPools {
 public:
  explicit BlockPools(BlockPoolsOptions options);

  int32_t block_size() const { return options_.block_size; }
  // The most tokens of one request that fit when nothing else is there.
  int64_t most_tokens(int64_t wanted) const;

  // What is cached of a waiting sequence, of at most `max_tokens` tokens; empty without a cache.
  void find_prefix(Sequence& sequence, int64_t max_tokens) const;
  // Blocks for a sequence that is admitted after its prefix's hits: of groups that keep all tokens
  // for all `length` of them, of others for the first `first_end`. The first `computed` tokens are
  // in the cache then: those of the hits, or more that come from another group. False, and nothing
  // taken: they are not there. `others_run`: then some are left to them.
  bool enter(Sequence& sequence, int32_t computed, int32_t length, int32_t first_end,
             bool others_run);
  bool may_enter(bool others_run) const;  // whether a single block is there

  // The tokens that the contents of a sequence's block depend on, beyond those of the blocks before
  // it; empty: they are not all there.
  std::span<const TokenId> block_tokens(std::span<const TokenId> tokens, size_t block) const {
    return cache_.block_tokens(tokens, block);
  }

  // Blocks for the first `tokens` tokens. False: some group has not enough, and none was taken.
  bool ensure(Sequence& sequence, int32_t tokens) {
    return tokens <= sequence.tokens_held || take(sequence, tokens);
  }
  // Of a row of `tokens` tokens after `computed` ones, as many as end where a checkpoint is kept:
  // at the last border of blocks that another request with these tokens can begin from.
  int32_t up_to_checkpoint(const Sequence& sequence, int32_t computed, int32_t tokens) const;
  // Entries of the device's block tables that it lacks for so many tokens, at most.
  size_t num_unsent(const Sequence& sequence, int32_t tokens) const {
    const size_t checkpoints = has_states_ ? 2 * pools_.size() : 0;  // begun from, and kept
    return checkpoints + (tokens <= sequence.tokens_sent ? 0 : count_unsent(sequence, tokens));
  }
  // Writes those into the step; returns their number.
  size_t send(Sequence& sequence, int32_t tokens, ipc::Step& step) {
    const bool all_there = tokens <= sequence.tokens_sent && !has_states_;
    return all_there ? 0 : send_new(sequence, tokens, step);
  }

  // After tokens are computed and known: makes full blocks findable, and gives back those that no
  // later token sees.
  void advance(Sequence& sequence) {
    const int32_t next = (sequence.blocks_published + 1) * options_.block_size;
    if (sequence.num_computed >= next || gives_back_) pass(sequence);
  }
  // Nobody may find what it holds.
  void distrust(Sequence& sequence);
  void release(Sequence& sequence);
  // What one sequence holds another one holds, which held nothing.
  void move(Sequence& from, Sequence& to);

  // What the sequence holds, which then holds nothing: its blocks outlast it.
  std::vector<HeldBlocks> detach(Sequence& sequence);
  uint64_t generation(size_t group, BlockId block) const {
    return pools_[group].blocks->generation(block);
  }
  // Whether what a sequence holds can move to another group: no group keeps a state of its slot.
  bool all_paged() const { return !has_states_; }
  int32_t blocks_for(int32_t tokens) const {
    return (tokens + options_.block_size - 1) / options_.block_size;
  }

  // Of the group that is fullest.
  int64_t num_usable() const;
  int64_t num_free() const;
  size_t num_paged() const { return num_paged_; }
  uint64_t lookups() const { return cache_.lookups(); }

 private:
  struct Pool {
    ipc::StateGroup group;
    std::unique_ptr<BlockManager> blocks;  // null: none
    bool paged() const { return group.kind == ipc::StateKind::kPaged; }
    bool keeps_all() const { return paged() && group.window == 0; }
  };
  std::vector<PrefixCache::Group> cache_groups() const;
  const Pool& fullest() const;
  bool take(Sequence& sequence, int32_t tokens);
  size_t count_unsent(const Sequence& sequence, int32_t tokens) const;
  size_t send_new(Sequence& sequence, int32_t tokens, ipc::Step& step);
  void pass(Sequence& sequence);
  int64_t reserve(const Pool& pool, bool others_run) const;
  size_t send_blocks(Sequence& sequence, size_t group, int32_t tokens,
                     ipc::BlockUpdates& updates) const;
  size_t send_checkpoints(Sequence& sequence, size_t group, ipc::BlockUpdates& updates);
  bool keeps_checkpoints() const;
  void publish(Sequence& sequence);
  void give_back(Sequence& sequence) const;

  BlockPoolsOptions options_;
  std::vector<Pool> pools_;  // by state group
  size_t num_paged_ = 0;     // groups of blocks of tokens
  bool has_states_ = false;  // a group has slots
  bool gives_back_ = false;  // a group does not keep all
  PrefixCache cache_;
};

}  // namespace refrain
