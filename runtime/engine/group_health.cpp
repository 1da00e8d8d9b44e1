#include "runtime/engine/group_health.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine.h"

namespace refrain {

GroupHealth::GroupHealth(HealthLimits limits, const GroupMembership& members, StepGather& steps)
    : limits_(limits),
      members_(members),
      steps_(steps),
      loops_(static_cast<size_t>(members.num_ranks())),
      board_(members.num_ranks()),
      positions_(members.num_ranks()) {}

void GroupHealth::joined(int32_t rank, TimePoint now) {
  of(rank) = DeviceLoop{now};
  board_.restart(now);  // who was here may have waited for it
  board_.moved(rank, now, true);
}

void GroupHealth::heard_device(int32_t rank, TimePoint now) {
  of(rank).heard = now;
  if (of(rank).loads == 0) return;
  positions_.got_on(rank, now);
  steps_.restart(now);
}

void GroupHealth::loads_adapter() {
  for (DeviceLoop& loop : loops_) ++loop.loads;
}

void GroupHealth::adapter_loaded(int32_t rank) {
  if (of(rank).loads > 0) --of(rank).loads;
}

void GroupHealth::serves(TimePoint now) {
  for (DeviceLoop& loop : loops_) loop.heard = now;
  positions_.restart(now);
}

void GroupHealth::dismissed() {
  board_ = StartBoard(members_.num_ranks());
  positions_ = RankPositions(members_.num_ranks());
}

std::optional<StartProgress> GroupHealth::progress(int32_t rank, ipc::Progress progress,
                                                   TimePoint now) {
  board_.moved(rank, now, true);
  return board_.report(rank, std::move(progress));
}

bool GroupHealth::stood_still(TimePoint now) {
  const Duration late = now - due_;
  if (late <= kStall) return false;
  log::warn("the coordinator's loop stood still for {:.1f} s; the workers get their time anew",
            seconds_of(late));
  waiting_since_ += late;
  steps_.restart(now);
  positions_.restart(now);
  board_.restart(now);
  for (DeviceLoop& loop : loops_) loop.heard = now;
  return true;
}

std::optional<GroupFault> GroupHealth::start_stall(TimePoint now) const {
  const Duration limit = std::max<Duration>(kStartStall, limits_.start_timeout / 10);
  std::vector<int32_t> stuck = board_.stuck(now - limit);
  if (stuck.empty()) return std::nullopt;
  std::string reason =
      fmt::format("the start of {} has stood still for {} s: {}", members_.names_of(stuck),
                  seconds_of(limit), progress_line(board_.of(stuck.front())));
  return GroupFault{"start", std::move(stuck), std::move(reason)};
}

std::optional<GroupFault> GroupHealth::start_deadline(TimePoint now) const {
  if (now - waiting_since_ < limits_.start_timeout) return std::nullopt;
  std::vector<int32_t> missing = members_.missing();
  std::string reason =
      missing.empty()
          ? fmt::format("the workers were not ready after {} s: {}",
                        seconds_of(limits_.start_timeout), progress_line(board_.slowest()))
          : fmt::format(
                "no worker of rank {} came within {} s; start it with the coordinator's "
                "address",
                fmt::join(missing, ", "), seconds_of(limits_.start_timeout));
  return GroupFault{GroupLoss::kStartTimeout, std::move(missing), std::move(reason), true};
}

Duration GroupHealth::until_start_check(TimePoint now) const {
  return std::min(limits_.start_timeout - (now - waiting_since_), limits_.heartbeat_interval);
}

// At an interval, and exactly when a rank's or a step's time is over.
Duration GroupHealth::until_check(TimePoint now) const {
  TimePoint next = now + limits_.heartbeat_interval;
  for (int32_t rank = 0; rank < members_.num_ranks(); ++rank)
    next = std::min(next, last_sign(rank) + limits_.heartbeat_timeout);
  if (!steps_.empty()) next = std::min(next, steps_.deadline(!positions_.blind()));
  if (const auto stall = stalled()) next = std::min(next, *stall);
  return std::max<Duration>(next - now, std::chrono::milliseconds(1));
}

// While a step is in flight the device loop may be busy in it: then any frame of the process will
// do, and the step's own limits rule. Without one the device loop itself must be heard of.
TimePoint GroupHealth::last_sign(int32_t rank) const {
  return steps_.empty() ? of(rank).heard : positions_.last_heard(rank);
}

std::optional<TimePoint> GroupHealth::stalled() const {
  const auto progress = positions_.last_progress();
  if (steps_.empty() || !progress) return std::nullopt;
  return steps_.stalled(*progress);
}

std::optional<GroupFault> GroupHealth::check(TimePoint now) const {
  for (int32_t rank = 0; rank < members_.num_ranks(); ++rank) {
    const Duration silence = now - last_sign(rank);
    if (silence < limits_.heartbeat_timeout) continue;
    return GroupFault{"heartbeat",
                      {rank},
                      fmt::format("{} has been silent for {:.1f} s; its last step is {}",
                                  members_.name_of(rank), seconds_of(silence), of(rank).last_step)};
  }
  return steps_.empty() ? std::nullopt : check_step(now);
}

// The step in flight has a deadline, and within it the ranks have to get on. Those that the others
// wait for are at fault.
std::optional<GroupFault> GroupHealth::check_step(TimePoint now) const {
  const auto stall = stalled();
  const bool hangs = stall && now >= *stall;
  if (!hangs && now < steps_.deadline(!positions_.blind())) return std::nullopt;
  const std::vector<int32_t> late = steps_.missing();
  std::vector<int32_t> behind = positions_.laggards(late, now);
  std::string reason = fmt::format(
      "{} {}, {} {}: {}", hangs ? "no rank gets on with step" : "the time is over for step",
      steps_.oldest(), behind.size() == 1 ? "held up by" : "nobody stands out of",
      members_.names_of(behind), positions_.text(now));
  return GroupFault{hangs ? kProgress : kStepDeadline, std::move(behind), std::move(reason)};
}

}  // namespace refrain
