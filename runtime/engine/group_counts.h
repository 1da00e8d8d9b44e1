#pragma once
// What a group's schedulers have counted over all epochs: the one that serves, and those of workers
// that were lost. A plain value of the group's service.

#include "runtime/engine/engine.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

class GroupCounts {
 public:
  // A scheduler goes.
  void add(const SchedulerStats& gone) {
    past_.preemptions += gone.preemptions;
    past_.cascade_steps += gone.cascade_steps;
    past_.drafts = past_.drafts + gone.drafts;
    past_.transfers = past_.transfers + gone.transfers;
    past_.transfers.running = past_.transfers.quarantined = 0;
    past_.leases_expired += gone.leases_expired;
    past_.prompt_tokens += gone.prompt_tokens;
    past_.cached_prompt_tokens += gone.cached_prompt_tokens;
  }
  // All of them, with those of the scheduler that serves; `gated` requests wait for their grammars,
  // and the canary, where there is one, is no client's.
  void fill(const SchedulerStats& now, size_t gated, const Sequence* canary,
            GroupStats& stats) const {
    const bool canary_runs = canary != nullptr && canary->state == SequenceState::kRunning;
    const bool canary_waits = canary != nullptr && !canary_runs;
    stats.requests_running = now.running - (canary_runs ? 1 : 0);
    stats.requests_waiting = now.waiting + gated - (canary_waits ? 1 : 0);
    stats.steps_in_flight = now.steps_in_flight;
    stats.prompt_tokens = past_.prompt_tokens + now.prompt_tokens;
    stats.cached_prompt_tokens = past_.cached_prompt_tokens + now.cached_prompt_tokens;
    stats.preemptions = past_.preemptions + now.preemptions;
    stats.cascade_steps = past_.cascade_steps + now.cascade_steps;
    stats.drafts = past_.drafts + now.drafts;
    stats.leases = now.leases;
    stats.leases_expired = past_.leases_expired + now.leases_expired;
    stats.transfers = past_.transfers + now.transfers;
    stats.blocks_total = static_cast<uint64_t>(now.blocks_total);
    stats.blocks_free = static_cast<uint64_t>(now.blocks_free);
  }

 private:
  SchedulerStats past_;
};

}  // namespace refrain
