#pragma once
// The counters of the engine and its groups: written on its executor, read from any thread.
// Holds CG-32's table of (unpadded tokens, padded tokens, mode) with counts.

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "runtime/base/clock.h"
#include "runtime/engine/engine.h"

namespace refrain {

// CPU time of the calling thread in microseconds.
double thread_cpu_us();

// Of a group.
class StatsBoard {
 public:
  StatsBoard(const Clock& clock, int32_t group, ipc::GroupRole role = ipc::GroupRole::kBoth)
      : clock_(clock), group_(group) {
    stats_.group = group;
    stats_.role = role;
  }
  int32_t group() const { return group_; }

  // Changes the counters under the lock.
  void change(const std::function<void(GroupStats&)>& edit);
  // One step done: its graph, how many tokens it gave.
  void step_done(const ipc::StepResult& result, size_t num_new_tokens);
  void audited(const ipc::AuditResult& audit);
  // All ranks answered a step, a canary's included.
  void answered(TimePoint now);
  // A device got on within a step.
  void progressed(TimePoint now);
  void add_step_cpu(double microseconds);
  // Captured keys that were never replayed are rows with count 0.
  GroupStats snapshot() const;
  EngineHealth health() const;

 private:
  using Use = std::tuple<ipc::RuntimeMode, int32_t, int32_t, bool>;  // mode, unpadded, padded, LoRA

  const Clock& clock_;
  const int32_t group_;
  mutable std::mutex mutex_;
  GroupStats stats_;
  std::map<Use, uint64_t> uses_;
  TimePoint last_answer_{}, last_progress_{};
};

// Of requests, whichever group they run in.
class RequestBoard {
 public:
  void change(const std::function<void(EngineStats&)>& edit);
  void ended(FinishReason reason);
  EngineStats snapshot() const;  // without what is a group's

 private:
  mutable std::mutex mutex_;
  EngineStats stats_;
};

// Over all groups.
EngineStats combine(EngineStats requests, std::vector<GroupStats> groups);
EngineHealth combine(const std::vector<EngineHealth>& groups, uint64_t requests_queued);
// The best of them, and in words what the others are at.
GroupState best_of(const std::vector<GroupState>& states);

}  // namespace refrain
