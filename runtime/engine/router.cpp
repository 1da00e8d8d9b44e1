#include "runtime/engine/router.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr int32_t kMostGroups = 64;  // bits of a word

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t bit_of(int32_t group) { return uint64_t{1} << group; }

}  // namespace

Router::Router(const std::vector<ipc::GroupRole>& roles, int32_t block_size)
    : block_size_(static_cast<size_t>(block_size)) {
  REFRAIN_CHECK(!roles.empty() && std::ssize(roles) <= kMostGroups, "{} groups", roles.size());
  for (const ipc::GroupRole role : roles) groups_.push_back({role});
}

void Router::close(int32_t group) {
  groups_[static_cast<size_t>(group)].open = false;
  for (Known* known : {&known_, &older_})
    for (auto& [hash, groups] : *known) groups &= ~bit_of(group);
}

void Router::set_role(int32_t group, ipc::GroupRole role) {
  groups_[static_cast<size_t>(group)].role = role;
}

bool Router::any_open() const {
  return std::ranges::any_of(groups_, [](const Group& group) { return group.open; });
}

bool Router::is_open(ipc::GroupRole role) const {
  return std::ranges::any_of(
      groups_, [role](const Group& group) { return group.open && group.role == role; });
}

bool Router::divides() const {
  return is_open(ipc::GroupRole::kPrefill) && is_open(ipc::GroupRole::kDecode);
}

// A group of the wrong role does the work where no other one can.
bool Router::takes(const Group& group, Part part) const {
  using ipc::GroupRole;
  if (!group.open) return false;
  switch (part) {
    case Part::kPrompt:
      return group.role != GroupRole::kDecode ||
             !(is_open(GroupRole::kPrefill) || is_open(GroupRole::kBoth));
    case Part::kAnswer:
      return group.role == GroupRole::kDecode;
    case Part::kAll:
      return group.role != GroupRole::kPrefill ||
             !(is_open(GroupRole::kDecode) || is_open(GroupRole::kBoth));
  }
  REFRAIN_CHECK(false, "no such part of a request: {}", static_cast<int>(part));
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

uint64_t Router::groups_with(uint64_t hash) const {
  uint64_t groups = 0;
  for (const Known* known : {&known_, &older_})
    if (const auto found = known->find(hash); found != known->end()) groups |= found->second;
  return groups;
}

void Router::remember(const std::vector<uint64_t>& hashes, int32_t group) {
  if (known_.size() + hashes.size() > kBlocks) older_ = std::exchange(known_, {});
  for (const uint64_t hash : hashes) known_[hash] |= bit_of(group);
}

std::optional<Router::Choice> Router::choose(std::span<const TokenId> tokens,
                                             const Context& context, int64_t max_output, Part part,
                                             std::optional<int32_t> promised) const {
  std::vector<uint64_t> hashes = beginnings(tokens, context);
  std::vector<int64_t> cached(groups_.size(), 0);
  uint64_t matching = ~uint64_t{0};
  for (const uint64_t hash : hashes) {
    matching &= groups_with(hash);
    if (matching == 0) break;
    for (size_t group = 0; group < groups_.size(); ++group)
      if ((matching >> group & 1) != 0) cached[group] += static_cast<int64_t>(block_size_);
  }
  // Blocks that come from another group cost less than any tokens that are computed.
  const bool computed = part != Part::kAnswer;
  const int64_t length = computed ? static_cast<int64_t>(tokens.size()) : 0;
  if (!computed) std::ranges::fill(cached, 0);
  const auto cost = [&](size_t group) {
    return std::tuple(promised != static_cast<int32_t>(group),
                      groups_[group].work + length - cached[group], groups_[group].taken);
  };
  std::optional<size_t> best;
  for (size_t group = 0; group < groups_.size(); ++group)
    if (takes(groups_[group], part) && (!best || cost(group) < cost(*best))) best = group;
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
