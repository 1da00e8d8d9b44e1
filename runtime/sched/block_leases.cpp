#include "runtime/sched/block_leases.h"

#include <algorithm>
#include <utility>

namespace refrain {

BlockLease::~BlockLease() {
  if (owner_ != nullptr) std::erase(owner_->leases_, this);
}

bool BlockLease::commit() const {
  if (owner_ == nullptr) return false;
  for (size_t group = 0; group < blocks_.size(); ++group) {
    const std::vector<BlockId>& blocks = blocks_[group].blocks;
    for (size_t i = 0; i < blocks.size(); ++i)
      if (owner_->pools_.generation(group, blocks[i]) != generations_[group][i]) return false;
  }
  return true;
}

BlockLeases::~BlockLeases() {
  for (BlockLease* lease : leases_) {
    lease->held_.clear();
    lease->owner_ = nullptr;
  }
}

std::shared_ptr<BlockLease> BlockLeases::grant(std::vector<HeldBlocks> held, int32_t tokens,
                                               TimePoint until) {
  std::shared_ptr<BlockLease> lease(new BlockLease);
  lease->owner_ = this;
  lease->tokens_ = tokens;
  lease->until_ = until;
  for (size_t group = 0; group < held.size(); ++group) {
    LeasedBlocks& source = lease->blocks_.emplace_back();
    std::vector<uint64_t>& generations = lease->generations_.emplace_back();
    source.first = held[group].first;
    for (auto i = static_cast<size_t>(source.first); i < held[group].blocks.size(); ++i) {
      source.blocks.push_back(held[group].blocks[i].id());
      generations.push_back(pools_.generation(group, source.blocks.back()));
    }
  }
  lease->held_ = std::move(held);
  leases_.push_back(lease.get());
  return lease;
}

size_t BlockLeases::expire(TimePoint now) {
  size_t expired = 0;
  for (BlockLease* lease : leases_) {
    if (!lease->held() || lease->until_ > now) continue;
    lease->held_.clear();
    ++expired;
  }
  return expired;
}

size_t BlockLeases::size() const {
  return static_cast<size_t>(
      std::ranges::count_if(leases_, [](const BlockLease* lease) { return lease->held(); }));
}

}  // namespace refrain
