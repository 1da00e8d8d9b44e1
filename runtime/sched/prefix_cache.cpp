#include "runtime/sched/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

// The finaliser of splitmix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t hash_block(const std::string& salt, uint64_t parent, std::span<const TokenId> tokens) {
  uint64_t hash = mix(parent + 0x9e3779b97f4a7c15ULL);
  if (parent == PrefixCache::kRoot) hash ^= std::hash<std::string>{}(salt);
  for (const TokenId token : tokens) hash = mix(hash + static_cast<uint32_t>(token) + 1);
  return hash;
}

}  // namespace

PrefixCache::PrefixCache(BlockManager& blocks, int32_t block_size)
    : blocks_(blocks), block_size_(static_cast<size_t>(block_size)) {
  blocks_.on_evict([this](BlockId block) { evict(block); });
}

const PrefixCache::Entry* PrefixCache::lookup(const std::string& salt, EntryId parent,
                                              std::span<const TokenId> tokens) const {
  auto [entry, end] = entries_.equal_range(hash_block(salt, parent, tokens));
  for (; entry != end; ++entry) {
    const Entry& candidate = entry->second;
    if (candidate.parent == parent && std::ranges::equal(candidate.tokens, tokens) &&
        (parent != kRoot || candidate.salt == salt))
      return &candidate;
  }
  return nullptr;
}

void PrefixCache::extend(const std::string& salt, std::span<const TokenId> tokens,
                         int64_t max_tokens, Match& match) const {
  drop_evicted(match);
  size_t end = (match.blocks.size() + 1) * block_size_;
  while (end <= tokens.size() && static_cast<int64_t>(end) <= max_tokens) {
    ++lookups_;
    const Entry* entry = lookup(salt, match.last(), tokens.subspan(end - block_size_, block_size_));
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.entries.push_back(entry->id);
    end += block_size_;
  }
}

// An entry's number is never given out again, so that an equal one means equal contents.
void PrefixCache::drop_evicted(Match& match) const {
  if (std::exchange(match.evictions, evictions_) == evictions_) return;
  size_t kept = 0;
  for (; kept < match.blocks.size(); ++kept) {
    const auto found = by_block_.find(match.blocks[kept]);
    if (found == by_block_.end() || found->second->second.id != match.entries[kept]) break;
  }
  match.blocks.resize(kept);
  match.entries.resize(kept);
}

PrefixCache::EntryId PrefixCache::insert(const std::string& salt, EntryId parent,
                                         std::span<const TokenId> tokens, BlockId block) {
  REFRAIN_CHECK(tokens.size() == block_size_, "a cached block holds {} tokens, not {}", block_size_,
                tokens.size());
  if (const Entry* known = lookup(salt, parent, tokens)) return known->id;
  REFRAIN_CHECK(!by_block_.contains(block), "block {} is cached already", block);
  Entry entry{next_id_++, parent, block, parent == kRoot ? salt : std::string(),
              std::vector<TokenId>(tokens.begin(), tokens.end())};
  const EntryId id = entry.id;
  by_block_[block] = entries_.emplace(hash_block(salt, parent, tokens), std::move(entry));
  blocks_.set_cached(block);
  return id;
}

void PrefixCache::forget(BlockId block) {
  if (!by_block_.contains(block)) return;
  evict(block);
  blocks_.set_cached(block, false);
}

void PrefixCache::evict(BlockId block) {
  const auto found = by_block_.find(block);
  REFRAIN_CHECK(found != by_block_.end(), "block {} is marked as cached but has no entry", block);
  entries_.erase(found->second);
  by_block_.erase(found);
  ++evictions_;
}

}  // namespace refrain
