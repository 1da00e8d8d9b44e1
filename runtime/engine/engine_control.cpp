// The part of EngineCore for what an operator asks of single groups (group_control.h).

#include <fmt/format.h>

#include <utility>

#include "runtime/engine/engine_core.h"

namespace refrain {

GroupControl::Hooks EngineCore::control_hooks() {
  GroupControl::Hooks hooks;
  hooks.ready = [this](int32_t index) { return groups_[index].ready(); };
  hooks.failed = [this](int32_t index) { return groups_[index].failed(); };
  hooks.idle = [this](int32_t index) { return groups_[index].idle(); };
  hooks.restart = [this](int32_t index, std::optional<ipc::GroupRole> role) {
    if (!role) return groups_[index].restart("its workers start again, as an operator asked", true);
    groups_[index].change_role(*role, fmt::format("it is for {} from now on, as an operator asked",
                                                  ipc::to_string(*role)));
  };
  hooks.changed = [this](int32_t index) {
    placement_.hold(index, control_.holds(index));
    pump_all();
  };
  return hooks;
}

void EngineCore::control_group(const GroupOrder& order, const GroupOrderDone& done) {
  if (stopped_) return done(fail(ErrorCode::kUnavailable, "the engine was stopped"));
  if (order.role && !config_.has_roles())
    return done(fail_field("role",
                           "the groups of this server have no roles; --prefill-groups and "
                           "--decode-groups start groups that have"));
  control_.take(order, done);
  publish();
}

// In a turn of its own: a group may be in the middle of its step.
void EngineCore::look_at_control() {
  if (!control_.waits()) return;
  executor_->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->control_.look();
  });
}

}  // namespace refrain
