#pragma once
// Which group of workers takes a request: the one that would have done it first, by the tokens that
// it has to compute before, where tokens it computed for others with the same beginning cost
// nothing (least work and prefix affinity in one number). With roles a prompt goes to a group that
// is not for answers only, an answer to the decode group with the least work. Pure; the engine owns
// it.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "ipc/protocol/group_role.h"
#include "runtime/base/ids.h"

namespace refrain {

class Router {
 public:
  // What a request's cached tokens depend on besides themselves.
  struct Context {
    std::string salt;
    AdapterId adapter = 0;
  };
  static constexpr int64_t kExpectedOutput = 128;  // tokens of an answer that may be longer

  Router(const std::vector<ipc::GroupRole>& roles, int32_t block_size);  // by group

  // A group takes requests only while it is open. One that closes has lost what it has computed.
  void open(int32_t group);
  void close(int32_t group);
  bool is_open(int32_t group) const { return groups_[static_cast<size_t>(group)].open; }
  ipc::GroupRole role(int32_t group) const { return groups_[static_cast<size_t>(group)].role; }
  void set_role(int32_t group, ipc::GroupRole role);  // while it is closed
  bool any_open() const;
  // Whether prompts can be computed in one group and their answers in another.
  bool divides() const;

  enum class Part : uint8_t {
    kAll,     // prompt and answer: not in a prefill group while another one is open
    kPrompt,  // up to the first token: not in a decode group while another one is open
    kAnswer,  // what comes after it, its prompt computed elsewhere: in a decode group or nowhere
  };
  // The group that takes this part of the request, with its tokens so far and those it may still
  // get; of equal groups the one that took none for longest. Nothing: none is open.
  std::optional<int32_t> place(RequestId id, std::span<const TokenId> tokens,
                               const Context& context, int64_t max_output, Part part = Part::kAll);
  void gone(RequestId id);  // it has ended, or was taken back from its group
  // The group that will take its answer: place() of that finds it where it is open then. Nothing:
  // none would take it.
  std::optional<int32_t> promise(RequestId id, int64_t max_output);
  std::optional<int32_t> promised(RequestId id) const;
  std::optional<int32_t> take_promise(RequestId id);  // back; the group that it was of
  int64_t work(int32_t group) const { return groups_[static_cast<size_t>(group)].work; }

 private:
  // Beginnings of prompts that are remembered, in blocks, before the older half is forgotten.
  static constexpr size_t kBlocks = size_t{1} << 16;

  struct Group {
    ipc::GroupRole role = ipc::GroupRole::kBoth;
    bool open = false;
    int64_t work = 0;    // tokens, of the requests it has
    uint64_t taken = 0;  // when it took the last one
  };
  struct Placed {
    int32_t group = 0;
    int64_t work = 0;
  };
  // What a group is chosen by: the least.
  struct Rank {
    int64_t work = 0;
    uint64_t taken = 0;
    int32_t group = 0;
    bool operator<(const Rank& other) const {
      return std::tie(work, taken, group) < std::tie(other.work, other.taken, other.group);
    }
  };
  struct Choice {
    int32_t group = 0;
    int64_t work = 0;  // that it adds
  };
  // Hash of a beginning -> the groups that have computed it, in order.
  using Known = std::unordered_map<uint64_t, std::vector<int32_t>>;

  bool is_open(ipc::GroupRole role) const { return !ranks_[static_cast<size_t>(role)].empty(); }
  Rank rank(int32_t group) const;
  // `cached`: tokens that groups would not have to compute.
  std::optional<Choice> choose(int64_t length, const std::map<int32_t, int64_t>& cached,
                               int64_t max_output, Part part,
                               std::optional<int32_t> promised) const;
  void add(const Choice& choice);
  void change_work(int32_t group, int64_t by, bool takes);
  std::array<bool, 3> takers(Part part) const;
  std::vector<uint64_t> beginnings(std::span<const TokenId> tokens, const Context& context) const;
  std::vector<int32_t> groups_with(uint64_t hash) const;
  std::map<int32_t, int64_t> cached(const std::vector<uint64_t>& beginnings) const;
  void remember(const std::vector<uint64_t>& hashes, int32_t group);

  const size_t block_size_;
  std::vector<Group> groups_;
  std::array<std::set<Rank>, 3> ranks_;  // by role; of the groups that are open
  std::unordered_map<RequestId, Placed> placed_, promised_;
  Known known_, older_;
  uint64_t num_taken_ = 0;
};

}  // namespace refrain
