#include "runtime/sched/block_pools.h"

#include <algorithm>
#include <utility>

#include "ipc/protocol/state_blocks.h"
#include "runtime/base/check.h"

namespace refrain {

BlockPools::BlockPools(BlockPoolsOptions options)
    : options_(std::move(options)),
      pools_([this] {
        REFRAIN_CHECK(!options_.groups.empty() && options_.groups.size() <= kMaxGroups,
                      "a model with {} state groups", options_.groups.size());
        std::vector<Pool> pools;
        for (const ipc::StateGroup& group : options_.groups) {
          Pool& pool = pools.emplace_back(Pool{group, nullptr});
          if (pool.paged() || group.num_blocks > 0)
            pool.blocks = std::make_unique<BlockManager>(group.num_blocks);
          // Where nothing of a group is kept, no request can begin in the middle.
          options_.prefix_caching = options_.prefix_caching && pool.blocks != nullptr;
        }
        return pools;
      }()),
      num_paged_(static_cast<size_t>(std::ranges::count_if(pools_, &Pool::paged))),
      has_states_(num_paged_ < pools_.size()),
      gives_back_(!std::ranges::all_of(pools_, &Pool::keeps_all)),
      cache_(cache_groups(), options_.block_size, options_.lookahead) {}

std::vector<PrefixCache::Group> BlockPools::cache_groups() const {
  std::vector<PrefixCache::Group> groups;
  for (const Pool& pool : pools_)
    groups.push_back({pool.blocks.get(), pool.group.kind, pool.group.window});
  return groups;
}

int64_t BlockPools::most_tokens(int64_t wanted) const {
  for (const Pool& pool : pools_) {
    if (!pool.paged()) continue;
    const int64_t usable = pool.blocks->num_usable();
    const int64_t needed =
        ipc::most_blocks(pool.group.window, wanted, options_.tokens_a_step, options_.block_size);
    if (needed > usable) wanted = std::min(wanted, usable * options_.block_size);
  }
  return wanted;
}

int64_t BlockPools::reserve(const Pool& pool, bool others_run) const {
  if (!others_run) return 0;
  const double share = options_.watermark * static_cast<double>(pool.blocks->num_usable());
  return std::max<int64_t>(1, static_cast<int64_t>(share));
}

bool BlockPools::may_enter(bool others_run) const {
  return std::ranges::all_of(pools_, [&](const Pool& pool) {
    return !pool.paged() || pool.blocks->num_free() >= 1 + reserve(pool, others_run);
  });
}

void BlockPools::find_prefix(Sequence& sequence, int64_t max_tokens) const {
  if (!options_.prefix_caching) return;
  cache_.extend(sequence.block_space, sequence.tokens, max_tokens, sequence.prefix);
}

bool BlockPools::enter(Sequence& sequence, int32_t computed, int32_t length, int32_t first_end,
                       bool others_run) {
  const PrefixCache::Match& match = sequence.prefix;
  const auto hits = static_cast<int32_t>(match.hits);
  const auto first_of = [&](size_t group) {
    const ipc::StateGroup& of = pools_[group].group;
    if (!pools_[group].paged()) return static_cast<int32_t>(cache_.first_needed(group, match.hits));
    return static_cast<int32_t>(ipc::first_block_seen(of.window, computed, options_.block_size));
  };
  for (size_t group = 0; group < pools_.size(); ++group) {
    const Pool& pool = pools_[group];
    if (!pool.paged()) continue;
    const auto needed =
        blocks_for(pool.keeps_all() ? length : first_end) - std::max(hits, first_of(group));
    int64_t hits_free = 0;  // that come to life again
    for (auto i = static_cast<size_t>(first_of(group)); i < match.hits; ++i)
      hits_free += pool.blocks->ref_count(match.blocks[i][group]) == 0 ? 1 : 0;
    if (pool.blocks->num_free() - hits_free < needed + reserve(pool, others_run)) return false;
  }
  sequence.held.resize(pools_.size());
  for (size_t group = 0; group < pools_.size(); ++group) {
    const Pool& pool = pools_[group];
    HeldBlocks& held = sequence.held[group];
    held.first = first_of(group);
    held.sent = held.first;
    held.blocks.resize(static_cast<size_t>(held.first));
    for (auto i = static_cast<size_t>(held.first); i < match.hits; ++i)
      held.blocks.push_back(pool.blocks->share(match.blocks[i][group]));
  }
  for (size_t group = 0; group < pools_.size(); ++group) {
    const Pool& pool = pools_[group];
    if (!pool.paged()) continue;
    const auto needed = static_cast<size_t>(blocks_for(pool.keeps_all() ? length : first_end));
    std::vector<BlockRef>& blocks = sequence.held[group].blocks;
    while (blocks.size() < needed) blocks.push_back(*pool.blocks->allocate());
  }
  sequence.tokens_held = blocks_for(length) * options_.block_size;
  if (gives_back_) sequence.tokens_held = blocks_for(first_end) * options_.block_size;
  sequence.blocks_published = hits;
  sequence.chain = match.last();
  sequence.prefix = {};
  return true;
}

bool BlockPools::take(Sequence& sequence, int32_t tokens) {
  const auto needed = static_cast<size_t>(blocks_for(tokens));
  for (size_t group = 0; group < pools_.size(); ++group) {
    if (!pools_[group].paged()) continue;
    const size_t have = sequence.held[group].blocks.size();
    if (have >= needed) continue;
    if (pools_[group].blocks->num_free() < static_cast<int64_t>(needed - have)) return false;
  }
  for (size_t group = 0; group < pools_.size(); ++group) {
    if (!pools_[group].paged()) continue;
    std::vector<BlockRef>& blocks = sequence.held[group].blocks;
    while (blocks.size() < needed) blocks.push_back(*pools_[group].blocks->allocate());
  }
  sequence.tokens_held = static_cast<int32_t>(needed) * options_.block_size;
  return true;
}

bool BlockPools::keeps_checkpoints() const {
  return options_.prefix_caching && std::ranges::any_of(pools_, [](const Pool& pool) {
           return !pool.paged() && pool.blocks != nullptr;
         });
}

int32_t BlockPools::up_to_checkpoint(const Sequence& sequence, int32_t computed,
                                     int32_t tokens) const {
  if (!keeps_checkpoints()) return tokens;
  const int32_t border = (sequence.length() - 1) / options_.block_size * options_.block_size;
  return computed < border && border < computed + tokens ? border - computed : tokens;
}

size_t BlockPools::count_unsent(const Sequence& sequence, int32_t tokens) const {
  const int32_t needed = blocks_for(tokens);
  size_t entries = 0;
  for (size_t group = 0; group < pools_.size(); ++group) {
    if (!pools_[group].paged()) continue;
    const int32_t sent = sequence.held.empty() ? 0 : sequence.held[group].sent;
    entries += static_cast<size_t>(std::max(0, needed - sent));
  }
  return entries;
}

size_t BlockPools::send_new(Sequence& sequence, int32_t tokens, ipc::Step& step) {
  size_t entries = 0;
  for (size_t group = 0; group < pools_.size(); ++group) {
    entries += pools_[group].paged() ? send_blocks(sequence, group, tokens, step.blocks[group])
                                     : send_checkpoints(sequence, group, step.blocks[group]);
  }
  sequence.tokens_sent = blocks_for(tokens) * options_.block_size;
  return entries;
}

size_t BlockPools::send_blocks(Sequence& sequence, size_t group, int32_t tokens,
                               ipc::BlockUpdates& updates) const {
  const int32_t needed = blocks_for(tokens);
  HeldBlocks& held = sequence.held[group];
  const int32_t before = held.sent;
  for (int32_t& i = held.sent; i < needed; ++i) {
    updates.slot.push_back(sequence.slot);
    updates.index.push_back(i);
    updates.block.push_back(held.blocks[static_cast<size_t>(i)].id());
  }
  return static_cast<size_t>(held.sent - before);
}

// The one that the sequence begins from, with its first row, and one where a row of its prompt ends
// at a border of blocks.
size_t BlockPools::send_checkpoints(Sequence& sequence, size_t group, ipc::BlockUpdates& updates) {
  HeldBlocks& held = sequence.held[group];
  const int32_t end = sequence.num_scheduled;
  const bool keeps = options_.prefix_caching && !sequence.distrusted && end < sequence.length() &&
                     end % options_.block_size == 0;
  if (keeps) {
    if (std::optional<BlockRef> checkpoint = pools_[group].blocks->allocate()) {
      held.blocks.resize(static_cast<size_t>(end / options_.block_size));
      held.blocks.back() = std::move(*checkpoint);
    }
  }
  size_t entries = 0;
  for (auto i = static_cast<size_t>(held.sent); i < held.blocks.size(); ++i) {
    if (held.blocks[i].id() == kReservedBlock) continue;
    updates.slot.push_back(sequence.slot);
    updates.index.push_back(static_cast<int32_t>(i) + 1);
    updates.block.push_back(held.blocks[i].id());
    ++entries;
  }
  held.sent = static_cast<int32_t>(held.blocks.size());
  return entries;
}

void BlockPools::pass(Sequence& sequence) {
  if (sequence.held.empty()) return;
  publish(sequence);
  give_back(sequence);
}

// Full blocks whose contents are computed and known can be found by other requests.
void BlockPools::publish(Sequence& sequence) {
  if (!options_.prefix_caching || sequence.distrusted) return;
  const int32_t size = options_.block_size;
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  const int32_t full = std::min(sequence.num_computed, known - options_.lookahead) / size;
  for (int32_t& i = sequence.blocks_published; i < full; ++i) {
    const std::span<const TokenId> tokens =
        cache_.block_tokens(sequence.tokens, static_cast<size_t>(i));
    BlockOfGroups blocks{};
    for (size_t group = 0; group < pools_.size(); ++group) {
      const HeldBlocks& held = sequence.held[group];
      if (static_cast<size_t>(i) < held.blocks.size())
        blocks[group] = held.blocks[static_cast<size_t>(i)].id();
    }
    sequence.chain = cache_.insert(sequence.block_space, sequence.chain, tokens, blocks);
  }
}

void BlockPools::give_back(Sequence& sequence) const {
  for (size_t group = 0; group < pools_.size(); ++group) {
    const Pool& pool = pools_[group];
    if (pool.keeps_all()) continue;
    HeldBlocks& held = sequence.held[group];
    // The next row begins there or later; those under way run before whoever gets the blocks.
    int32_t seen = sequence.num_computed / options_.block_size;
    if (pool.paged())
      seen = static_cast<int32_t>(
          ipc::first_block_seen(pool.group.window, sequence.num_computed, options_.block_size));
    seen = std::min(seen, static_cast<int32_t>(held.blocks.size()));
    for (; held.first < seen; ++held.first) held.blocks[static_cast<size_t>(held.first)].reset();
  }
}

void BlockPools::distrust(Sequence& sequence) {
  sequence.distrusted = true;
  for (size_t group = 0; group < sequence.held.size(); ++group) {
    const HeldBlocks& held = sequence.held[group];
    for (const BlockRef& block : held.blocks)
      if (block.id() != kReservedBlock) cache_.forget(group, block.id());
  }
}

// The last block first: of a cached chain the end is reused before its beginning.
void BlockPools::release(Sequence& sequence) {
  for (HeldBlocks& held : sequence.held)
    while (!held.blocks.empty()) held.blocks.pop_back();
  sequence.held.clear();
  sequence.tokens_held = sequence.tokens_sent = 0;
  sequence.blocks_published = 0;
  sequence.chain = PrefixCache::kRoot;
  sequence.prefix = {};  // of this cache
}

void BlockPools::move(Sequence& from, Sequence& to) {
  to.held = std::exchange(from.held, {});
  to.tokens_held = from.tokens_held;
  to.tokens_sent = from.tokens_sent;
  to.blocks_published = from.blocks_published;
  to.chain = from.chain;
  to.prefix = {};
  release(from);
}

std::vector<HeldBlocks> BlockPools::detach(Sequence& sequence) {
  std::vector<HeldBlocks> held = std::exchange(sequence.held, {});
  release(sequence);
  return held;
}

const BlockPools::Pool& BlockPools::fullest() const {
  const auto free_share = [](const Pool& pool) {
    if (!pool.paged()) return 2.0;
    return static_cast<double>(pool.blocks->num_free()) /
           static_cast<double>(pool.blocks->num_usable());
  };
  return *std::ranges::min_element(pools_, {}, free_share);
}

int64_t BlockPools::num_usable() const {
  const Pool& pool = fullest();
  return pool.blocks == nullptr ? 0 : pool.blocks->num_usable();
}

int64_t BlockPools::num_free() const {
  const Pool& pool = fullest();
  return pool.blocks == nullptr ? 0 : pool.blocks->num_free();
}

}  // namespace refrain
