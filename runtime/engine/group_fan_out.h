#pragma once
// What a group's ranks are told, numbered for each of them, and their answers to the steps in
// flight. Owns the endpoint. Owned by the worker group, on the engine's executor.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/transport/endpoint.h"
#include "runtime/engine/group_membership.h"
#include "runtime/engine/step_gather.h"

namespace refrain {

class GroupFanOut {
 public:
  // A member could not be sent a message; called in the middle of one.
  using OnDeaf = std::function<void(int32_t rank, const Error&)>;

  GroupFanOut(std::unique_ptr<ipc::Endpoint> endpoint, GroupMembership& members, OnDeaf on_deaf);

  void start(ipc::Endpoint::FrameHandler on_frame) { endpoint_->start(std::move(on_frame)); }
  void close() { endpoint_->close(); }

  void send_step(const ipc::Message& step, TimePoint now);
  // Rank 0's answer when it was the last one missing, as StepGather::add.
  Result<std::optional<ipc::StepResult>> answer(int32_t rank, ipc::StepResult result,
                                                TimePoint now) {
    return gather_.add(rank, std::move(result), now);
  }
  void broadcast(const ipc::Message& message);
  // A heartbeat. Until a rank has answered its Welcome it gets that again: frame 1 stays the only
  // one, so that no number is used twice however often it goes.
  Status beat(Member& member);
  void beat_or_tell(int32_t rank);  // the same; a failure goes to on_deaf
  void beat_all();
  void refuse(const ipc::PeerId& peer, std::string reason);
  void shut_down(const std::string& reason);  // all members are told to go

  StepGather& steps() { return gather_; }
  const StepGather& steps() const { return gather_; }

 private:
  std::unique_ptr<ipc::Endpoint> endpoint_;
  GroupMembership& members_;
  OnDeaf on_deaf_;
  StepGather gather_;
  uint64_t heartbeats_ = 0;
  std::vector<std::byte> frame_;
};

}  // namespace refrain
