#pragma once
// Pages of the KV cache, counted: which are free and how many hold each. Block 0 is reserved for
// padded rows and never given out. Owned by the Scheduler, on the engine's executor; it outlives
// every BlockRef.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/ids.h"

namespace refrain {

class BlockManager;

// One reference to a block; gives it up when destroyed.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef&& other) noexcept {
    if (this != &other) {
      reset();
      manager_ = std::exchange(other.manager_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~BlockRef() { reset(); }

  BlockId id() const { return id_; }
  void reset();

 private:
  friend class BlockManager;
  BlockRef(BlockManager* manager, BlockId id) : manager_(manager), id_(id) {}
  BlockManager* manager_ = nullptr;
  BlockId id_ = kReservedBlock;
};

class BlockManager {
 public:
  using EvictHandler = std::function<void(BlockId)>;

  explicit BlockManager(int64_t num_blocks);  // including the reserved block
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()) - 1; }
  int64_t num_usable() const { return num_blocks() - 1; }
  int64_t num_free() const { return num_free_; }
  int32_t ref_count(BlockId id) const { return blocks_[index(id)].refs; }
  // Grows whenever the block is given out anew: an equal one means that what was in it is in it
  // yet.
  uint64_t generation(BlockId id) const { return blocks_[index(id)].generation; }

  // The free block used longest ago, blocks without cached contents first; empty: none is free.
  // Contents that are lost are told to the evict handler.
  std::optional<BlockRef> allocate();
  // One more reference; a free block comes back to life with its contents.
  BlockRef share(BlockId id);
  // Cached contents are worth keeping: such a block is taken last when free. Only of one in use.
  void set_cached(BlockId id, bool cached = true);
  void on_evict(EvictHandler handler) { evict_ = std::move(handler); }

 private:
  friend class BlockRef;
  struct Block {
    uint64_t generation = 0;
    int32_t refs = 0;
    bool cached = false;
    int32_t previous = 0;  // free list, through the sentinel at the end of blocks_
    int32_t next = 0;
  };

  size_t index(BlockId id) const;
  void release(BlockId id);
  void link_before(int32_t position, int32_t at);
  void unlink(int32_t at);

  std::vector<Block> blocks_;  // [num_blocks + 1], the last one is the free list's sentinel
  int32_t sentinel_ = 0;
  int64_t num_free_ = 0;
  EvictHandler evict_;
};

}  // namespace refrain
