#include "runtime/engine/step_rounds.h"

#include <algorithm>
#include <vector>

#include "runtime/sched/step_together.h"

namespace refrain {

bool StepRounds::all_serve() const {
  return std::ranges::all_of(groups_, [](const auto& each) {
    return each->steps_together() && each->state() == GroupState::kReady;
  });
}

void StepRounds::plan(int32_t index) {
  GroupService& group = groups_[index];
  if (group.steps_together()) return plan_together();
  group.send_grammars();
  while (group.takes_step()) {
    const StepPlan* plan = group.scheduler().schedule(group.now());
    if (plan == nullptr) break;
    group.send(*plan);
  }
  group.send_orders();
}

void StepRounds::plan_together() {
  together_ = true;
  if (!all_serve()) return;
  for (const auto& each : groups_) each->send_grammars();
  while (std::ranges::all_of(groups_, [](const auto& each) { return each->takes_step(); })) {
    std::vector<Scheduler*> schedulers;
    for (const auto& each : groups_) schedulers.push_back(&each->scheduler());
    const auto plans = schedule_together(schedulers, groups_[0].now());
    if (plans.empty()) break;
    for (int32_t index = 0; index < groups_.size(); ++index)
      groups_[index].send(*plans[static_cast<size_t>(index)]);
  }
  for (const auto& each : groups_) each->send_orders();
}

bool StepRounds::lost(int32_t index, size_t in_flight, bool for_good) {
  if (!together_) return in_flight == 1;
  if (going_too_.erase(index) > 0) return in_flight == 1 && in_flight_ == 1;
  in_flight_ = in_flight;
  for (int32_t other = 0; other < groups_.size(); ++other) {
    if (other == index || groups_[other].failed()) continue;
    in_flight_ += groups_[other].requests_in_flight();
    if (for_good) {
      groups_[other].give_up("replicas", "it steps with a group that is lost for good");
      going_too_.insert(other);
    } else if (groups_[other].state() == GroupState::kReady ||
               groups_[other].state() == GroupState::kStarting) {
      groups_[other].restart("it steps with a group that was lost", false);
      going_too_.insert(other);
    }
  }
  return in_flight == 1 && in_flight_ == 1;
}

}  // namespace refrain
