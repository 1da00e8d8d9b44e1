#include "runtime/sched/block_manager.h"

#include <limits>

#include "runtime/base/check.h"

namespace refrain {

void BlockRef::reset() {
  if (BlockManager* manager = std::exchange(manager_, nullptr)) manager->release(id_);
  id_ = kReservedBlock;
}

BlockManager::BlockManager(int64_t num_blocks) {
  REFRAIN_CHECK(num_blocks >= 2 && num_blocks < std::numeric_limits<BlockId>::max(),
                "a KV cache needs block 0 and at least one more, got {} blocks", num_blocks);
  blocks_.resize(static_cast<size_t>(num_blocks) + 1);
  sentinel_ = static_cast<int32_t>(num_blocks);
  blocks_.back().previous = blocks_.back().next = sentinel_;
  for (BlockId id = kReservedBlock + 1; id < sentinel_; ++id) link_before(sentinel_, id);
  num_free_ = num_usable();
}

size_t BlockManager::index(BlockId id) const {
  REFRAIN_CHECK(id > kReservedBlock && id < sentinel_, "block {} is none of 1..{}", id,
                sentinel_ - 1);
  return static_cast<size_t>(id);
}

std::optional<BlockRef> BlockManager::allocate() {
  if (num_free_ == 0) return std::nullopt;
  const BlockId id = blocks_[static_cast<size_t>(sentinel_)].next;
  unlink(id);
  --num_free_;
  Block& block = blocks_[index(id)];
  REFRAIN_CHECK(block.refs == 0, "free block {} has {} references", id, block.refs);
  block.refs = 1;
  ++block.generation;
  if (block.cached) {
    block.cached = false;
    if (evict_) evict_(id);
  }
  return BlockRef(this, id);
}

BlockRef BlockManager::share(BlockId id) {
  Block& block = blocks_[index(id)];
  if (block.refs == 0) {
    REFRAIN_CHECK(block.cached, "free block {} holds nothing to share", id);
    unlink(id);
    --num_free_;
  }
  ++block.refs;
  return BlockRef(this, id);
}

void BlockManager::set_cached(BlockId id, bool cached) {
  Block& block = blocks_[index(id)];
  REFRAIN_CHECK(block.refs > 0, "what free block {} holds cannot change", id);
  block.cached = cached;
}

void BlockManager::release(BlockId id) {
  Block& block = blocks_[index(id)];
  REFRAIN_CHECK(block.refs > 0, "block {} is released more often than it is held", id);
  if (--block.refs > 0) return;
  const int32_t front = blocks_[static_cast<size_t>(sentinel_)].next;
  link_before(block.cached ? sentinel_ : front, id);
  ++num_free_;
}

void BlockManager::link_before(int32_t position, int32_t at) {
  Block& after = blocks_[static_cast<size_t>(position)];
  Block& block = blocks_[static_cast<size_t>(at)];
  block.previous = after.previous;
  block.next = position;
  blocks_[static_cast<size_t>(after.previous)].next = at;
  after.previous = at;
}

void BlockManager::unlink(int32_t at) {
  const Block& block = blocks_[static_cast<size_t>(at)];
  blocks_[static_cast<size_t>(block.previous)].next = block.next;
  blocks_[static_cast<size_t>(block.next)].previous = block.previous;
}

}  // namespace refrain
