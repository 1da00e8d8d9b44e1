#pragma once
// What reaches a group: a frame is read, found to be a member's and in its turn, and none is lost
// . Owned by the worker group, on the engine's executor.

#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "ipc/protocol/messages.h"
#include "ipc/transport/endpoint.h"
#include "runtime/base/clock.h"
#include "runtime/engine/group_membership.h"

namespace refrain {

class GroupInbox {
 public:
  struct Letter {
    int32_t rank = -1;  // -1: a Hello, whose sender need not be a member yet
    ipc::Message message;
  };
  // Nothing: the frame is not for this group.
  using Taken = tl::expected<std::optional<Letter>, GroupFault>;

  explicit GroupInbox(GroupMembership& members) : members_(members) {}

  Taken take(const ipc::PeerId& from, std::span<const std::byte> bytes, TimePoint now);

 private:
  Taken unreadable(const ipc::PeerId& from, const std::string& why, TimePoint now);

  GroupMembership& members_;
};

}  // namespace refrain
