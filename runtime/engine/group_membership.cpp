#include "runtime/engine/group_membership.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ipc/protocol/state_blocks.h"
#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr int32_t kMostRowTile = 1 << 16;

tl::unexpected<GroupFault> start_fault(std::vector<int32_t> ranks, std::string reason,
                                       bool for_good = false) {
  return tl::make_unexpected(GroupFault{"start", std::move(ranks), std::move(reason), for_good});
}

// What is the same on every rank.
bool same_group(const ipc::StateGroup& a, const ipc::StateGroup& b) {
  return a.name == b.name && a.kind == b.kind && a.window == b.window;
}

// Why a group's blocks are not enough for one request; none: they are.
std::optional<std::string> too_few(const ipc::StateGroup& group, const ipc::WorkerConfig& config) {
  const int64_t needed = ipc::most_blocks(group.window, config.max_model_len,
                                          config.max_num_batched_tokens, config.block_size);
  if (group.num_blocks - 1 >= needed) return std::nullopt;
  return fmt::format(
      "holds {} tokens, less than one request of --max-model-len {}; lower it or "
      "give the cache more memory (--gpu-memory-utilization, "
      "--kv-cache-memory-bytes)",
      std::max<int64_t>(group.num_blocks - 1, 0) * config.block_size, config.max_model_len);
}

}  // namespace

GroupMembership::GroupMembership(GroupIdentity identity, Epoch first_epoch)
    : identity_(std::move(identity)),
      epoch_(first_epoch),
      members_(static_cast<size_t>(identity_.tensor_parallel_size)) {}

bool GroupMembership::empty() const {
  return std::ranges::none_of(members_, [](const auto& member) { return member.has_value(); });
}

int32_t GroupMembership::rank_of(const ipc::PeerId& peer) const {
  for (int32_t rank = 0; rank < num_ranks(); ++rank)
    if (has(rank) && find(rank)->peer == peer) return rank;
  return -1;
}

std::string GroupMembership::name_of(int32_t rank) const {
  const Member* known = find(rank);
  if (known == nullptr) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (pid {} on {})", rank, known->hello.pid, known->hello.host);
}

std::string GroupMembership::names_of(const std::vector<int32_t>& ranks) const {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int32_t rank : ranks) names.push_back(name_of(rank));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<int32_t> GroupMembership::missing() const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < num_ranks(); ++rank)
    if (!has(rank)) ranks.push_back(rank);
  return ranks;
}

std::optional<std::string> GroupMembership::refusal_of(const ipc::Hello& hello) const {
  return refusal(hello, identity_);
}

std::optional<std::string> GroupMembership::mixed_with(const ipc::Hello& hello) const {
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    if (!has(rank) || find(rank)->hello.held_group == hello.held_group) continue;
    const auto holds = [](const ipc::Hello& each) {
      return each.held_group.empty() ? "begins anew" : "holds the graphs of " + each.held_group;
    };
    return fmt::format("{} {} and rank {} {}; every worker has to start again", name_of(rank),
                       holds(find(rank)->hello), hello.rank, holds(hello));
  }
  return std::nullopt;
}

void GroupMembership::outgrow(Epoch epoch) {
  if (epoch < epoch_) return;
  REFRAIN_CHECK(empty(), "an epoch changes under the members of a group");
  epoch_ = epoch + 1;
}

Member& GroupMembership::join(const ipc::PeerId& from, const ipc::Hello& hello) {
  return members_[static_cast<size_t>(hello.rank)].emplace(epoch_, from, hello);
}

void GroupMembership::dismiss() {
  for (auto& member : members_) member.reset();
  groups_.clear();
  ++epoch_;
}

bool GroupMembership::bad_frame(int32_t rank, TimePoint now) {
  std::deque<TimePoint>& bad = find(rank)->bad_frames;
  bad.push_back(now);
  while (now - bad.front() > kBadFrameWindow) bad.pop_front();
  return bad.size() >= kBadFrames;
}

// Of every group the least over the ranks; none before all have loaded.
GroupMembership::Agreed GroupMembership::loaded(int32_t rank, const ipc::Loaded& loaded,
                                                const ipc::WorkerConfig& config) {
  auto& known = find(rank)->loaded;
  if (known)
    return start_fault({rank}, fmt::format("{} said twice that it is loaded", name_of(rank)));
  known = loaded;
  for (int32_t each = 0; each < num_ranks(); ++each)
    if (!has(each) || !find(each)->loaded) return std::nullopt;
  std::vector<ipc::StateGroup> groups = find(0)->loaded->groups;
  for (int32_t each = 0; each < num_ranks(); ++each) {
    const std::vector<ipc::StateGroup>& theirs = find(each)->loaded->groups;
    if (find(each)->loaded->steps_together != find(0)->loaded->steps_together)
      return start_fault({each}, name_of(each) + " and rank 0 differ in stepping with replicas",
                         true);
    if (!std::ranges::equal(theirs, groups, same_group))
      return start_fault({each}, name_of(each) + " has other state groups than rank 0", true);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].kind != ipc::StateKind::kPaged) continue;
      groups[i].cascade_keys = std::max(groups[i].cascade_keys, theirs[i].cascade_keys);
      if (const auto reason = too_few(theirs[i], config))
        return start_fault({each}, fmt::format("the KV cache of {} {}", name_of(each), *reason),
                           true);
      groups[i].num_blocks = std::min({groups[i].num_blocks, theirs[i].num_blocks,
                                       int64_t{std::numeric_limits<BlockId>::max()} - 1});
    }
  }
  groups_ = groups;
  return groups;
}

GroupMembership::Agreed GroupMembership::ready(int32_t rank, ipc::Ready ready) {
  auto& known = find(rank)->ready;
  if (known || groups_.empty())
    return start_fault({rank}, fmt::format("{} said out of turn that it is ready", name_of(rank)));
  if (ready.num_blocks.size() != groups_.size())
    return start_fault({rank}, fmt::format("{} says it has {} state groups instead of {}",
                                           name_of(rank), ready.num_blocks.size(), groups_.size()));
  if (ready.row_tile < 1 || ready.row_tile > kMostRowTile)
    return start_fault({rank}, fmt::format("{} says that {} rows are a tile; 1 to {} may be",
                                           name_of(rank), ready.row_tile, kMostRowTile));
  for (size_t i = 0; i < groups_.size(); ++i) {
    const int64_t blocks = ready.num_blocks[i], told = groups_[i].num_blocks;
    if (groups_[i].kind == ipc::StateKind::kPaged && (blocks < 2 || blocks > told))
      return start_fault({rank}, fmt::format("{} says it has {} KV blocks; it was told of {}",
                                             name_of(rank), blocks, told));
  }
  known = std::move(ready);
  const std::vector<ipc::Ready> all = all_ready();
  if (all.size() < members_.size()) return std::nullopt;
  if (auto mismatch = ready_mismatch(all)) return start_fault({}, std::move(*mismatch), true);
  std::vector<ipc::StateGroup> least = groups_;  // graphs took memory, more on some ranks
  for (const ipc::Ready& each : all)
    for (size_t i = 0; i < least.size(); ++i)
      least[i].num_blocks = std::min(least[i].num_blocks, each.num_blocks[i]);
  return least;
}

tl::expected<std::optional<ipc::Peers>, GroupFault> GroupMembership::meet(
    int32_t rank, ipc::RankAddress address) {
  auto& known = find(rank)->address;
  if (known) return start_fault({rank}, fmt::format("{} said twice where it is", name_of(rank)));
  known = std::move(address);
  ipc::Peers peers;
  for (int32_t each = 0; each < num_ranks(); ++each) {
    if (!has(each) || !find(each)->address) return std::nullopt;
    peers.ranks.push_back(*find(each)->address);
  }
  return peers;
}

bool GroupMembership::adopted() const {
  return std::ranges::all_of(members_, [](const auto& member) {
    return member && member->loaded && member->loaded->kept;
  });
}

std::vector<int64_t> GroupMembership::pids() const {
  std::vector<int64_t> all;
  for (const auto& member : members_)
    if (member) all.push_back(member->hello.pid);
  return all;
}

std::vector<ipc::Ready> GroupMembership::all_ready() const {
  std::vector<ipc::Ready> all;
  for (const auto& member : members_)
    if (member && member->ready) all.push_back(*member->ready);
  return all;
}

std::vector<std::string> GroupMembership::devices() const {
  std::vector<std::string> all;
  for (const auto& member : members_)
    if (member) all.push_back(member->hello.device);
  return all;
}

}  // namespace refrain
