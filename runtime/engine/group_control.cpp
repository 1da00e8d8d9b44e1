#include "runtime/engine/group_control.h"

#include <algorithm>

#include "runtime/base/log.h"

namespace refrain {

GroupControl::GroupControl(int32_t num_groups, Duration limit, Executor& executor, Hooks hooks)
    : limit_(limit),
      executor_(executor),
      hooks_(std::move(hooks)),
      groups_(static_cast<size_t>(num_groups)) {}

void GroupControl::take(const GroupOrder& order, GroupOrderDone done) {
  const auto refuse = [&done](Error error) { done(tl::make_unexpected(std::move(error))); };
  const int32_t index = order.group;
  const auto last = static_cast<int32_t>(groups_.size()) - 1;
  if (index < 0 || index > last)
    return refuse({ErrorCode::kInvalidArgument,
                   fmt::format("group {} is not there; it must be 0 to {}", index, last), "group"});
  Group& group = of(index);
  if (order.what == GroupOrder::What::kResume) {
    if (group.state == State::kRestarting)
      return refuse(
          {ErrorCode::kUnavailable,
           fmt::format("group {} starts again; it takes requests when it is ready", index),
           {}});
    answer(group, fail(ErrorCode::kCancelled, "group {} was told to take requests again", index));
    set(index, State::kOpen);
    return done({});
  }
  if (group.done || group.state == State::kRestarting)
    return refuse({ErrorCode::kUnavailable,
                   fmt::format("group {} is told to drain or to start again already", index),
                   {}});
  if (hooks_.failed(index))
    return refuse({ErrorCode::kUnavailable,
                   fmt::format("group {} has failed and is not started again", index),
                   {}});
  group.restarts = order.what == GroupOrder::What::kRestart;
  if (group.restarts && !hooks_.ready(index))
    return refuse({ErrorCode::kUnavailable,
                   fmt::format("group {} is not ready: it starts already", index),
                   {}});
  group.role = order.role;
  group.done = std::move(done);
  group.limit = run_later_(limit_, [this, index] { overdue(index); });
  set(index, State::kDraining);
  look();
}

std::optional<ipc::GroupRole> GroupControl::take_role(int32_t group) {
  return of(group).state == State::kRestarting ? std::exchange(of(group).role, std::nullopt)
                                               : std::nullopt;
}

bool GroupControl::waits() const {
  return std::ranges::any_of(groups_, [](const Group& group) {
    return group.state == State::kDraining || group.state == State::kRestarting;
  });
}

void GroupControl::look() {
  for (int32_t index = 0; index < std::ssize(groups_); ++index) {
    Group& group = of(index);
    if (group.state == State::kOpen) continue;
    if (hooks_.failed(index)) {
      answer(group, fail(ErrorCode::kUnavailable, "group {} has failed", index));
      set(index, State::kOpen);  // which is nothing to a group that is not there
    } else if (group.state == State::kDraining && hooks_.idle(index)) {
      drained(index);
    }
  }
}

void GroupControl::drained(int32_t index) {
  Group& group = of(index);
  if (!group.restarts) {
    log::info("group {} has ended its requests and takes no more", index);
    set(index, State::kDrained);
    return answer(group, {});
  }
  if (!hooks_.ready(index)) {
    set(index, State::kOpen);
    return answer(group, fail(ErrorCode::kUnavailable,
                              "group {} was lost meanwhile and starts again as it was; ask again "
                              "when it is ready",
                              index));
  }
  executor_.cancel(group.limit);
  set(index, State::kRestarting);
  hooks_.restart(index, group.role);
}

void GroupControl::overdue(int32_t index) {
  Group& group = of(index);
  if (group.state != State::kDraining || !group.done) return;
  if (group.restarts) return drained(index);
  answer(group, fail(ErrorCode::kDeadline,
                     "group {} takes no requests, but has not ended those that it has within "
                     "--drain-timeout",
                     index));
}

void GroupControl::came(int32_t group) {
  if (of(group).state != State::kRestarting) return;
  set(group, State::kOpen);
  answer(of(group), {});
}

void GroupControl::end(const Error& why) {
  for (Group& group : groups_) answer(group, tl::make_unexpected(why));
}

void GroupControl::set(int32_t index, State state) {
  const bool held = holds(index);
  of(index).state = state;
  if (held != holds(index)) hooks_.changed(index);
}

void GroupControl::answer(Group& group, const Status& status) {
  executor_.cancel(group.limit);
  if (const GroupOrderDone done = std::exchange(group.done, nullptr)) done(status);
}

}  // namespace refrain
