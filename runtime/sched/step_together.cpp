#include "runtime/sched/step_together.h"

#include <algorithm>

namespace refrain {

std::vector<const StepPlan*> schedule_together(std::span<Scheduler* const> replicas,
                                               TimePoint now) {
  std::vector<const StepPlan*> plans;
  for (Scheduler* each : replicas) plans.push_back(each->schedule(now));
  if (std::ranges::all_of(plans, [](const StepPlan* plan) { return plan == nullptr; })) return {};
  std::vector<ipc::StepSize> sizes;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i] == nullptr) plans[i] = &replicas[i]->idle_step();
    sizes.push_back(ipc::size_of(plans[i]->step()));
  }
  for (Scheduler* each : replicas) each->set_together(sizes);
  return plans;
}

}  // namespace refrain
