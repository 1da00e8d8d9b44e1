#pragma once
// Blocks that outlast their request for a reader in another group. The owner keeps them
// until the reader ends the lease or stops renewing it. Whoever has read asks commit(), which the
// owner answers by the blocks' generations: blocks that were given out anew meanwhile held another
// request's tokens, and nothing that was read of them may be used. A lease may be promised while
// the step that writes the blocks runs: they can be read, and commit() waits for the grant. Owned
// by the Scheduler, on the engine's executor, where readers hold their leases too.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/sched/block_pools.h"

namespace refrain {

class BlockLeases;

// Blocks of one state group under a lease, by their places in the request's block table.
struct LeasedBlocks {
  int32_t first = 0;  // place of blocks[0]
  std::vector<BlockId> blocks;
};

class BlockLease {
 public:
  ~BlockLease();
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;

  int32_t tokens() const { return tokens_; }  // whose state the blocks hold
  const std::vector<LeasedBlocks>& blocks() const { return blocks_; }  // by state group
  // False: the owner is gone, has the blocks back, or keeps them for itself after all. What was
  // read may still be good: commit().
  bool held() const { return promised_ || !held_.empty(); }
  bool promised() const { return promised_; }
  void renew(TimePoint until) { until_ = std::max(until_, until); }
  // Whether it was granted, and no block was given out anew since, or since it was promised.
  bool commit() const;

  int32_t group = 0;  // of workers that has the blocks, and its epoch; set by who grants it
  Epoch epoch = 0;

 private:
  friend class BlockLeases;
  BlockLease() = default;
  BlockLeases* owner_ = nullptr;  // null: gone
  bool promised_ = false, granted_ = false;
  int32_t tokens_ = 0;
  TimePoint until_{};
  std::vector<HeldBlocks> held_;
  std::vector<LeasedBlocks> blocks_;
  std::vector<std::vector<uint64_t>> generations_;  // of those
};

class BlockLeases {
 public:
  // `pools` outlives it.
  explicit BlockLeases(const BlockPools& pools) : pools_(pools) {}
  ~BlockLeases();
  BlockLeases(const BlockLeases&) = delete;
  BlockLeases& operator=(const BlockLeases&) = delete;

  // On what a sequence held of its first `tokens` tokens.
  std::shared_ptr<BlockLease> grant(std::vector<HeldBlocks> held, int32_t tokens, TimePoint until);
  // The sequence keeps them while the step runs that writes the last of them. Then grant(), of what
  // it holds still, or withdraw().
  std::shared_ptr<BlockLease> promise(const std::vector<HeldBlocks>& held, int32_t tokens);
  static void grant(BlockLease& promised, std::vector<HeldBlocks> held, TimePoint until);
  static void withdraw(BlockLease& promised) { promised.promised_ = false; }
  // Blocks whose leases were not renewed in time are free again; returns the number of those.
  size_t expire(TimePoint now);
  size_t size() const;  // leases that hold blocks
  // Called when a reader ends a lease, just before its blocks are free.
  void when_given_back(std::function<void()> call) { given_back_ = std::move(call); }

 private:
  friend class BlockLease;
  std::shared_ptr<BlockLease> make(const std::vector<HeldBlocks>& held, int32_t tokens);

  const BlockPools& pools_;
  std::vector<BlockLease*> leases_;  // in the order in which they were granted
  std::function<void()> given_back_;
};

}  // namespace refrain
