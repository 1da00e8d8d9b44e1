#include "runtime/engine/kv_exchange.h"

#include <algorithm>
#include <utility>

namespace refrain {

KvExchange::KvExchange(const std::vector<Group>& groups, Tell tell) : tell_(std::move(tell)) {
  for (const Group& group : groups) {
    Side& side = sides_.emplace_back(Side{group.role, 0, {}});
    side.ranks.resize(static_cast<size_t>(group.num_ranks()));
  }
}

bool KvExchange::complete(int32_t group) const {
  return std::ranges::all_of(side(group).ranks, [](const auto& rank) { return rank.has_value(); });
}

ipc::KvPeers KvExchange::peers(int32_t group) const {
  ipc::KvPeers peers{group, side(group).epoch, {}};
  for (const auto& rank : side(group).ranks) peers.ranks.push_back(*rank);
  return peers;
}

std::vector<int32_t> KvExchange::partners(int32_t group) const {
  std::vector<int32_t> found;
  for (int32_t other = 0; other < std::ssize(sides_); ++other)
    if (side(other).role != side(group).role && complete(other)) found.push_back(other);
  return found;
}

void KvExchange::exported(int32_t group, Epoch epoch, int32_t rank, ipc::KvExport own) {
  Side& side = sides_[static_cast<size_t>(group)];
  side.epoch = epoch;
  side.ranks[static_cast<size_t>(rank)] = std::move(own);
  if (!complete(group)) return;
  for (const int32_t other : partners(group)) {
    tell_(other, peers(group));
    tell_(group, peers(other));
  }
}

void KvExchange::set_role(int32_t group, ipc::GroupRole role) {
  sides_[static_cast<size_t>(group)].role = role;
}

void KvExchange::lost(int32_t group) {
  const bool was_complete = complete(group);
  Side& side = sides_[static_cast<size_t>(group)];
  for (auto& rank : side.ranks) rank.reset();
  if (!was_complete) return;
  for (const int32_t other : partners(group)) tell_(other, ipc::KvPeers{group, side.epoch, {}});
}

}  // namespace refrain
