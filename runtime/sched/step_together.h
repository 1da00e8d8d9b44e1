#pragma once
// The steps of replicas that step together (CG-17): all take one in each round, and each is told
// the sizes of all, so that every worker finds the key that they have in common. On the engine's
// executor.

#include <span>
#include <vector>

#include "runtime/sched/scheduler.h"

namespace refrain {

// One step of each scheduler, valid as those of schedule(); empty: none has anything to run.
std::vector<const StepPlan*> schedule_together(std::span<Scheduler* const> replicas,
                                               TimePoint now = {});

}  // namespace refrain
