#include "runtime/engine/group_fan_out.h"

#include <utility>

#include "runtime/base/log.h"

namespace refrain {

GroupFanOut::GroupFanOut(std::unique_ptr<ipc::Endpoint> endpoint, GroupMembership& members,
                         OnDeaf on_deaf)
    : endpoint_(std::move(endpoint)),
      members_(members),
      on_deaf_(std::move(on_deaf)),
      gather_(members.num_ranks()) {}

void GroupFanOut::send_step(const ipc::Message& step, TimePoint now) {
  gather_.sent(std::get<ipc::Step>(step), now);
  broadcast(step);
}

// Encoded once as long as all ranks are at the same sequence, which they are from their start on.
void GroupFanOut::broadcast(const ipc::Message& message) {
  uint64_t encoded = 0;
  for (int32_t rank = 0; rank < members_.num_ranks(); ++rank) {
    Member* member = members_.find(rank);
    if (member == nullptr) continue;
    if (++member->sent != encoded) {
      encoded = member->sent;
      ipc::encode_frame(message, {members_.epoch(), encoded}, frame_);
    }
    if (const Status sent = endpoint_->send(member->peer, frame_); !sent)
      on_deaf_(rank, sent.error());
  }
}

Status GroupFanOut::beat(Member& member) {
  if (member.spoke) {
    ipc::encode_frame(ipc::Heartbeat{gather_.last_done(), ++heartbeats_},
                      {members_.epoch(), ++member.sent}, frame_);
  } else {
    member.sent = 1;
    ipc::encode_frame(member.welcome, {members_.epoch(), 1}, frame_);
  }
  return endpoint_->send(member.peer, frame_);
}

void GroupFanOut::beat_or_tell(int32_t rank) {
  if (const Status sent = beat(*members_.find(rank)); !sent) on_deaf_(rank, sent.error());
}

void GroupFanOut::beat_all() {
  for (int32_t rank = 0; rank < members_.num_ranks(); ++rank)
    if (members_.find(rank) != nullptr) beat_or_tell(rank);
}

void GroupFanOut::refuse(const ipc::PeerId& peer, std::string reason) {
  log::warn("worker {} refused: {}", peer, reason);
  ipc::encode_frame(ipc::Refuse{std::move(reason)}, {0, 1}, frame_);
  if (const Status sent = endpoint_->send(peer, frame_); !sent)
    log::warn("the refusal did not reach {}: {}", peer, sent.error().message);
}

void GroupFanOut::shut_down(const std::string& reason) {
  for (int32_t rank = 0; rank < members_.num_ranks(); ++rank) {
    Member* member = members_.find(rank);
    if (member == nullptr) continue;
    ipc::encode_frame(ipc::Shutdown{reason}, {members_.epoch(), ++member->sent}, frame_);
    // A rank that cannot be told is the one that is gone.
    if (const Status sent = endpoint_->send(member->peer, frame_); !sent)
      log::debug("shutdown to {}: {}", members_.name_of(rank), sent.error().message);
  }
}

}  // namespace refrain
