#include "runtime/engine/router.h"

#include <algorithm>
#include <functional>
#include <iterator>
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

Router::Rank Router::rank(int32_t group) const {
  const Group& of = groups_[static_cast<size_t>(group)];
  return {of.work, of.taken, group};
}

void Router::open(int32_t group) {
  Group& opened = groups_[static_cast<size_t>(group)];
  opened.open = true;
  ranks_[static_cast<size_t>(opened.role)].insert(rank(group));
}

void Router::close(int32_t group) {
  Group& closed = groups_[static_cast<size_t>(group)];
  closed.open = false;
  ranks_[static_cast<size_t>(closed.role)].erase(rank(group));
  for (Known* known : {&known_, &older_})
    for (auto& [hash, groups] : *known) std::erase(groups, group);
}

void Router::set_role(int32_t group, ipc::GroupRole role) {
  REFRAIN_CHECK(!is_open(group), "group {} is open", group);
  groups_[static_cast<size_t>(group)].role = role;
}

bool Router::any_open() const {
  return std::ranges::any_of(ranks_, [](const auto& open) { return !open.empty(); });
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

// By group, the tokens of the beginnings that it has without a gap.
std::map<int32_t, int64_t> Router::cached(const std::vector<uint64_t>& beginnings) const {
  std::map<int32_t, int64_t> tokens;
  std::vector<int32_t> matching;
  for (size_t i = 0; i < beginnings.size(); ++i) {
    const std::vector<int32_t> before = std::exchange(matching, {});
    const std::vector<int32_t> have = groups_with(beginnings[i]);
    if (i == 0) {
      matching = have;
    } else {
      std::ranges::set_intersection(before, have, std::back_inserter(matching));
    }
    if (matching.empty()) break;
    for (const int32_t group : matching) tokens[group] += static_cast<int64_t>(block_size_);
  }
  return tokens;
}

// The least of its role, unless a group has some of it cached or was promised.
std::optional<Router::Choice> Router::choose(int64_t length,
                                             const std::map<int32_t, int64_t>& cached,
                                             int64_t max_output, Part part,
                                             std::optional<int32_t> promised) const {
  const std::array<bool, 3> takes = takers(part);
  std::optional<std::pair<bool, Rank>> least;  // elsewhere than promised
  const auto offer = [&](int32_t group, int64_t tokens) {
    const Group& of = groups_[static_cast<size_t>(group)];
    if (!of.open || !takes[static_cast<size_t>(of.role)]) return;
    const std::pair made(promised != group, Rank{of.work - tokens, of.taken, group});
    if (!least || made < *least) least = made;
  };
  for (const auto& ranks : ranks_)
    if (!ranks.empty()) offer(ranks.begin()->group, 0);
  for (const auto& [group, tokens] : cached) offer(group, tokens);
  if (promised) offer(*promised, 0);
  if (!least) return std::nullopt;
  const Rank& rank = least->second;
  const int64_t saved = work(rank.group) - rank.work;
  return Choice{rank.group, length - saved + std::clamp<int64_t>(max_output, 0, kExpectedOutput)};
}

void Router::change_work(int32_t group, int64_t by, bool takes) {
  Group& of = groups_[static_cast<size_t>(group)];
  auto& ranks = ranks_[static_cast<size_t>(of.role)];
  auto node = ranks.extract(rank(group));  // empty where it is closed
  of.work += by;
  if (takes) of.taken = ++num_taken_;
  if (node.empty()) return;
  node.value() = rank(group);
  ranks.insert(std::move(node));
}

void Router::add(const Choice& choice) { change_work(choice.group, choice.work, true); }

std::optional<int32_t> Router::place(RequestId id, std::span<const TokenId> tokens,
                                     const Context& context, int64_t max_output, Part part) {
  if (groups_.size() == 1) return groups_.front().open ? std::optional(0) : std::nullopt;
  const std::optional<int32_t> promised = take_promise(id);
  const std::vector<uint64_t> hashes = beginnings(tokens, context);
  // Blocks that come from another group cost less than any tokens that are computed.
  const bool computed = part != Part::kAnswer;
  const auto choice =
      choose(computed ? std::ssize(tokens) : 0,
             computed ? cached(hashes) : std::map<int32_t, int64_t>{}, max_output, part, promised);
  if (!choice) return std::nullopt;
  add(*choice);
  const bool is_new = placed_.emplace(id, Placed{choice->group, choice->work}).second;
  REFRAIN_CHECK(is_new, "request {} was placed twice", id);
  remember(hashes, choice->group);
  return choice->group;
}

std::optional<int32_t> Router::promise(RequestId id, int64_t max_output) {
  take_promise(id);
  const auto choice = choose(0, {}, max_output, Part::kAnswer, std::nullopt);
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
  change_work(promised.group, -promised.work, false);
  promised_.erase(found);
  return promised.group;
}

void Router::gone(RequestId id) {
  const auto found = placed_.find(id);
  if (found == placed_.end()) return;
  change_work(found->second.group, -found->second.work, false);
  placed_.erase(found);
}

}  // namespace refrain
