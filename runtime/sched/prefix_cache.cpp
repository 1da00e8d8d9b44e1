#include "runtime/sched/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "ipc/protocol/state_blocks.h"
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
  const auto word = [&](size_t i) { return uint64_t{static_cast<uint32_t>(tokens[i])}; };
  size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) hash = mix(hash + (word(i) << 32 | word(i + 1)) + 1);
  if (i < tokens.size()) hash = mix(hash + word(i) + 1);
  return hash;
}

}  // namespace

PrefixCache::PrefixCache(std::vector<Group> groups, int32_t block_size, int32_t lookahead)
    : groups_(std::move(groups)),
      block_size_(static_cast<size_t>(block_size)),
      entry_tokens_(block_size_ + static_cast<size_t>(lookahead)),
      by_block_(groups_.size()) {
  REFRAIN_CHECK(groups_.size() <= kMaxGroups, "{} state groups", groups_.size());
  size_t most = 0;  // entries: all have room from the start, so that no step waits for a new table
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].blocks == nullptr) continue;
    const auto blocks = static_cast<size_t>(groups_[group].blocks->num_blocks());
    by_block_[group].resize(blocks, entries_.end());
    most += blocks;
    groups_[group].blocks->on_evict([this, group](BlockId block) { evict(group, block); });
  }
  entries_.reserve(most);
  tokens_.reserve(most * entry_tokens_);
}

// Whether an entry is that of these tokens.
bool PrefixCache::is_of(const Entry& entry, const std::string& salt, EntryId parent,
                        std::span<const TokenId> tokens) const {
  const std::span<const TokenId> its =
      std::span(tokens_).subspan(entry.place * entry_tokens_, entry_tokens_);
  return entry.parent == parent && std::ranges::equal(its, tokens) &&
         (parent != kRoot || entry.salt == salt);
}

void PrefixCache::extend(const std::string& salt, std::span<const TokenId> tokens,
                         int64_t max_tokens, Match& match) const {
  refresh(match);
  size_t end = (match.entries.size() + 1) * block_size_;
  while (static_cast<int64_t>(end) <= max_tokens) {
    const auto block = block_tokens(tokens, match.entries.size());
    if (block.empty()) break;
    ++lookups_;
    const EntryId parent = match.entries.empty() ? kRoot : match.entries.back();
    auto [at, last] = entries_.equal_range(hash_block(salt, parent, block));
    while (at != last && !is_of(at->second, salt, parent, block)) ++at;
    if (at == last) break;
    match.entries.push_back(at->second.id);
    match.blocks.push_back(at->second.blocks);
    end += block_size_;
  }
  match.hits = match.entries.size();
  while (match.hits > 0 && !can_resume(match, match.hits)) --match.hits;
}

std::span<const TokenId> PrefixCache::block_tokens(std::span<const TokenId> tokens,
                                                   size_t block) const {
  const size_t begin = block * block_size_;
  if (begin + entry_tokens_ > tokens.size()) return {};
  return tokens.subspan(begin, entry_tokens_);
}

size_t PrefixCache::first_needed(size_t group, size_t num_blocks) const {
  const Group& of = groups_[group];
  if (num_blocks == 0) return 0;
  if (of.kind == ipc::StateKind::kSlot) return num_blocks - 1;  // the state as it was then
  return static_cast<size_t>(ipc::first_block_seen(of.window,
                                                   static_cast<int64_t>(num_blocks * block_size_),
                                                   static_cast<int64_t>(block_size_)));
}

bool PrefixCache::can_resume(const Match& match, size_t num_blocks) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (size_t i = first_needed(group, num_blocks); i < num_blocks; ++i) {
      if (match.blocks[i][group] == kReservedBlock) return false;
    }
  }
  return true;
}

// Those whose entries are gone, or have other blocks altogether, are looked up again. An entry's
// number is never given out again, so that an equal one means equal contents.
void PrefixCache::refresh(Match& match) const {
  if (std::exchange(match.changes, changes_) == changes_) return;
  size_t kept = 0;
  for (; kept < match.entries.size(); ++kept) {
    const Entry* entry = find(match.entries[kept], match.blocks[kept]);
    if (entry == nullptr) break;
    match.blocks[kept] = entry->blocks;
  }
  match.entries.resize(kept);
  match.blocks.resize(kept);
}

// By one of the blocks that it had.
const PrefixCache::Entry* PrefixCache::find(EntryId id, const BlockOfGroups& blocks) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!is_cached(group, blocks[group])) continue;
    const Entry& entry = by_block_[group][static_cast<size_t>(blocks[group])]->second;
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

PrefixCache::EntryId PrefixCache::insert(const std::string& salt, EntryId parent,
                                         std::span<const TokenId> tokens,
                                         const BlockOfGroups& blocks) {
  REFRAIN_CHECK(tokens.size() == entry_tokens_, "a cached block is known by {} tokens, not {}",
                entry_tokens_, tokens.size());
  const uint64_t hash = hash_block(salt, parent, tokens);
  for (auto [at, last] = entries_.equal_range(hash); at != last; ++at) {
    if (!is_of(at->second, salt, parent, tokens)) continue;
    if (add_blocks(at, blocks)) ++changes_;
    return at->second.id;
  }
  Entry entry{next_id_++, parent, {}, keep(tokens), parent == kRoot ? salt : std::string()};
  const auto at = entries_.emplace(hash, std::move(entry));
  add_blocks(at, blocks);
  return at->second.id;
}

// Writes the tokens of an entry down; where they are.
size_t PrefixCache::keep(std::span<const TokenId> tokens) {
  if (free_places_.empty()) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return tokens_.size() / entry_tokens_ - 1;
  }
  const size_t place = free_places_.back();
  free_places_.pop_back();
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(place * entry_tokens_));
  return place;
}

// Those that the entry lacks; false: none.
bool PrefixCache::add_blocks(Map::iterator at, const BlockOfGroups& blocks) {
  bool any = false;
  for (size_t group = 0; group < groups_.size(); ++group) {
    BlockId& place = at->second.blocks[group];
    if (place != kReservedBlock || blocks[group] == kReservedBlock) continue;
    REFRAIN_CHECK(!is_cached(group, blocks[group]), "block {} is cached already", blocks[group]);
    place = blocks[group];
    entry_of(group, place) = at;
    groups_[group].blocks->set_cached(place);
    any = true;
  }
  return any;
}

void PrefixCache::forget(size_t group, BlockId block) {
  if (!is_cached(group, block)) return;
  evict(group, block);
  groups_[group].blocks->set_cached(block, false);
}

void PrefixCache::evict(size_t group, BlockId block) {
  REFRAIN_CHECK(is_cached(group, block), "block {} is marked as cached but has no entry", block);
  const Map::iterator at = std::exchange(entry_of(group, block), entries_.end());
  ++changes_;
  at->second.blocks[group] = kReservedBlock;
  if (at->second.blocks != BlockOfGroups{}) return;
  free_places_.push_back(at->second.place);
  entries_.erase(at);
}

}  // namespace refrain
