#include "runtime/engine/router.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

Router::Router(const std::vector<ipc::GroupRole>& roles, int32_t block_size)
    : block_size_(static_cast<size_t>(block_size)) {
  REFRAIN_CHECK(!roles.empty(), "no groups");
  for (const ipc::GroupRole role : roles) groups_.push_back({role});
}

void Router::open(int32_t group) {
  Group& opened = groups_[static_cast<size_t>(group)];
  num_open_[static_cast<size_t>(opened.role)] += opened.open ? 0 : 1;
  opened.open = true;
}

void Router::close(int32_t group) {
  Group& closed = groups_[static_cast<size_t>(group)];
  num_open_[static_cast<size_t>(closed.role)] -= closed.open ? 1 : 0;
  closed.open = false;
  for (Known* known : {&known_, &older_})
    for (auto& [hash, groups] : *known) std::erase(groups, group);
}

void Router::set_role(int32_t group, ipc::GroupRole role) {
  REFRAIN_CHECK(!is_open(group), "group {} is open", group);
  groups_[static_cast<size_t>(group)].role = role;
}

bool Router::any_open() const {
  return std::ranges::any_of(num_open_, [](int32_t count) { return count > 0; });
}

bool Router::divides() const {
  return is_open(ipc::GroupRole::kPrefill) && is_open(ipc::GroupRole::kDecode);
}

// By role. A group of the wrong role does the work where no other one can.
std::array<bool, 3> Router::takers(Part part) const {
  using ipc::GroupRole;
  if (part == Part::kAnswer) return {false, false, true};
  const bool both = is_open(GroupRole::kBoth);
  const bool prefill = part == Part::kPrompt || !(both || is_open(GroupRole::kDecode));
  const bool decode = part == Part::kAll || !(both || is_open(GroupRole::kPrefill));
  return {true, prefill, decode};
}

// Of every whole block of the tokens, with all before it. A collision costs a better place only.
std::vector<uint64_t> Router::beginnings(std::span<const TokenId> tokens,
                                         const Context& context) const {
  std::vector<uint64_t> hashes;
  uint64_t hash = mix(std::hash<std::string>{}(context.salt) + 1);
  hash = mix(hash + static_cast<uint64_t>(context.adapter));
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = mix(hash + static_cast<uint32_t>(tokens[i]) + 1);
    if ((i + 1) % block_size_ == 0) hashes.push_back(hash);
  }
  return hashes;
}

std::vector<int32_t> Router::groups_with(uint64_t hash) const {
  static const std::vector<int32_t> kNone;
  const auto known = known_.find(hash), older = older_.find(hash);
  const auto& one = known == known_.end() ? kNone : known->second;
  const auto& other = older == older_.end() ? kNone : older->second;
  std::vector<int32_t> groups;
  std::ranges::set_union(one, other, std::back_inserter(groups));
  return groups;
}

void Router::remember(const std::vector<uint64_t>& hashes, int32_t group) {
  if (known_.size() + hashes.size() > kBlocks) older_ = std::exchange(known_, {});
  for (const uint64_t hash : hashes) {
    std::vector<int32_t>& groups = known_[hash];
    const auto at = std::ranges::lower_bound(groups, group);
    if (at == groups.end() || *at != group) groups.insert(at, group);
  }
}

std::optional<Router::Choice> Router::choose(std::span<const TokenId> tokens,
                                             const Context& context, int64_t max_output, Part part,
                                             std::optional<int32_t> promised) const {
  std::vector<uint64_t> hashes = beginnings(tokens, context);
  std::vector<int64_t> cached(groups_.size(), 0);
  std::vector<int32_t> matching;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::vector<int32_t> before = std::exchange(matching, {});
    const std::vector<int32_t> have = groups_with(hashes[i]);
    if (i == 0) {
      matching = have;
    } else {
      std::ranges::set_intersection(before, have, std::back_inserter(matching));
    }
    if (matching.empty()) break;
    for (const int32_t group : matching)
      cached[static_cast<size_t>(group)] += static_cast<int64_t>(block_size_);
  }
  // Blocks that come from another group cost less than any tokens that are computed.
  const bool computed = part != Part::kAnswer;
  const int64_t length = computed ? static_cast<int64_t>(tokens.size()) : 0;
  if (!computed) std::ranges::fill(cached, 0);
  const std::array<bool, 3> takes = takers(part);
  std::optional<size_t> best;
  std::tuple<bool, int64_t, uint64_t> least;
  for (size_t at = 0; at < groups_.size(); ++at) {
    const Group& group = groups_[at];
    if (!group.open || !takes[static_cast<size_t>(group.role)]) continue;
    const std::tuple cost(promised != static_cast<int32_t>(at), group.work - cached[at],
                          group.taken);
    if (best && cost >= least) continue;
    best = at;
    least = cost;
  }
  if (!best) return std::nullopt;
  const int64_t work = length - cached[*best] + std::clamp<int64_t>(max_output, 0, kExpectedOutput);
  return Choice{static_cast<int32_t>(*best), work, std::move(hashes)};
}

void Router::add(const Choice& choice) {
  Group& group = groups_[static_cast<size_t>(choice.group)];
  group.work += choice.work;
  group.taken = ++num_taken_;
}

std::optional<int32_t> Router::place(RequestId id, std::span<const TokenId> tokens,
                                     const Context& context, int64_t max_output, Part part) {
  if (groups_.size() == 1) return groups_.front().open ? std::optional(0) : std::nullopt;
  const std::optional<int32_t> promised = take_promise(id);
  const auto choice = choose(tokens, context, max_output, part, promised);
  if (!choice) return std::nullopt;
  add(*choice);
  const bool is_new = placed_.emplace(id, Placed{choice->group, choice->work}).second;
  REFRAIN_CHECK(is_new, "request {} was placed twice", id);
  remember(choice->beginnings, choice->group);
  return choice->group;
}

std::optional<int32_t> Router::promise(RequestId id, std::span<const TokenId> tokens,
                                       const Context& context, int64_t max_output) {
  take_promise(id);
  const auto choice = choose(tokens, context, max_output, Part::kAnswer, std::nullopt);
  if (!choice) return std::nullopt;
  add(*choice);
  promised_[id] = {choice->group, choice->work};
  return choice->group;
}

std::optional<int32_t> Router::promised(RequestId id) const {
  const auto found = promised_.find(id);
  return found == promised_.end() ? std::nullopt : std::optional(found->second.group);
}

std::optional<int32_t> Router::take_promise(RequestId id) {
  const auto found = promised_.find(id);
  if (found == promised_.end()) return std::nullopt;
  const Placed promised = found->second;
  groups_[static_cast<size_t>(promised.group)].work -= promised.work;
  promised_.erase(found);
  return promised.group;
}

void Router::gone(RequestId id) {
  const auto found = placed_.find(id);
  if (found == placed_.end()) return;
  groups_[static_cast<size_t>(found->second.group)].work -= found->second.work;
  placed_.erase(found);
}

}  // namespace refrain
