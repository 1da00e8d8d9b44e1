#include "runtime/sched/block_leases.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {

BlockLease::~BlockLease() {
  if (owner_ == nullptr) return;
  std::erase(owner_->leases_, this);
  if (!held_.empty() && owner_->given_back_) owner_->given_back_();
}

bool BlockLease::commit() const {
  if (owner_ == nullptr || !granted_) return false;
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
    lease->promised_ = false;
    lease->owner_ = nullptr;
  }
}

std::shared_ptr<BlockLease> BlockLeases::make(const std::vector<HeldBlocks>& held, int32_t tokens) {
  std::shared_ptr<BlockLease> lease(new BlockLease);
  lease->owner_ = this;
  lease->tokens_ = tokens;
  for (size_t group = 0; group < held.size(); ++group) {
    LeasedBlocks& source = lease->blocks_.emplace_back();
    std::vector<uint64_t>& generations = lease->generations_.emplace_back();
    source.first = held[group].first;
    for (auto i = static_cast<size_t>(source.first); i < held[group].blocks.size(); ++i) {
      source.blocks.push_back(held[group].blocks[i].id());
      generations.push_back(pools_.generation(group, source.blocks.back()));
    }
  }
  leases_.push_back(lease.get());
  return lease;
}

std::shared_ptr<BlockLease> BlockLeases::grant(std::vector<HeldBlocks> held, int32_t tokens,
                                               TimePoint until) {
  auto lease = make(held, tokens);
  grant(*lease, std::move(held), until);
  return lease;
}

std::shared_ptr<BlockLease> BlockLeases::promise(const std::vector<HeldBlocks>& held,
                                                 int32_t tokens) {
  auto lease = make(held, tokens);
  lease->promised_ = true;
  return lease;
}

// Meanwhile the sequence may have given back blocks that no later token sees: a reader of the same
// window lacks none of them, and they are no part of the lease.
void BlockLeases::grant(BlockLease& lease, std::vector<HeldBlocks> held, TimePoint until) {
  for (size_t group = 0; group < held.size(); ++group) {
    LeasedBlocks& source = lease.blocks_[group];
    const auto gone = held[group].first - source.first;
    source.blocks.erase(source.blocks.begin(), source.blocks.begin() + gone);
    auto& generations = lease.generations_[group];
    generations.erase(generations.begin(), generations.begin() + gone);
    source.first = held[group].first;
    for (size_t i = 0; i < source.blocks.size(); ++i)
      REFRAIN_CHECK(
          held[group].blocks[static_cast<size_t>(source.first) + i].id() == source.blocks[i],
          "a lease was promised on other blocks than it is granted on");
  }
  lease.promised_ = false;
  lease.granted_ = true;
  lease.until_ = until;
  lease.held_ = std::move(held);
}

size_t BlockLeases::expire(TimePoint now) {
  size_t expired = 0;
  for (BlockLease* lease : leases_) {
    if (lease->held_.empty() || lease->until_ > now) continue;
    lease->held_.clear();
    ++expired;
  }
  return expired;
}

size_t BlockLeases::size() const {
  return static_cast<size_t>(std::ranges::count_if(
      leases_, [](const BlockLease* lease) { return !lease->held_.empty(); }));
}

}  // namespace refrain
