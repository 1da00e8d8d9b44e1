#pragma once
// Whether a group's ranks are alive and get on, in their start and within steps: it is told
// of what they say and judges it at a given time. It has no timer and sends nothing. Owned by the
// worker group, on the engine's executor.

#include <optional>
#include <vector>

#include "runtime/engine/group_membership.h"
#include "runtime/engine/rank_positions.h"
#include "runtime/engine/start_progress.h"
#include "runtime/engine/step_gather.h"

namespace refrain {

struct HealthLimits {
  Duration heartbeat_interval;
  Duration heartbeat_timeout;
  Duration start_timeout;
};

class GroupHealth {
 public:
  static constexpr const char* kProgress = "progress";
  static constexpr const char* kStepDeadline = "step deadline";

  GroupHealth(HealthLimits limits, const GroupMembership& members, StepGather& steps);

  void waits(TimePoint now) { waiting_since_ = now; }  // the time to start begins
  void joined(int32_t rank, TimePoint now);
  void serves(TimePoint now);  // all ranks are ready
  void dismissed();            // all ranks are gone

  void heard(int32_t rank, TimePoint now) { positions_.heard(rank, now); }  // any frame
  void heard_device(int32_t rank, TimePoint now);                           // of its device loop
  // Every rank loads a LoRA adapter, in its device loop: while that says that it gets on, the step
  // in flight waits behind it and has its time anew.
  void loads_adapter();
  void adapter_loaded(int32_t rank);
  void at_step(int32_t rank, StepId last_step) { of(rank).last_step = last_step; }
  // Whether its device has got on.
  bool position(int32_t rank, const ipc::Position& position, TimePoint now) {
    return positions_.report(rank, position, now);
  }
  // What is worth showing of the start.
  std::optional<StartProgress> progress(int32_t rank, ipc::Progress progress, TimePoint now);
  void moved(int32_t rank, TimePoint now, bool works) { board_.moved(rank, now, works); }

  // When it will be asked again; one that comes much later finds that this process stood still.
  void expect(TimePoint due) { due_ = due; }
  // When this process itself did not run, what it did not hear in that time says nothing: the ranks
  // and the step in flight get their time anew.
  bool stood_still(TimePoint now);
  // A rank that hangs in its start is found long before the start's own time is over.
  std::optional<GroupFault> start_stall(TimePoint now) const;
  std::optional<GroupFault> start_deadline(TimePoint now) const;
  Duration until_start_check(TimePoint now) const;
  // Of a group that serves: silent ranks, and the step in flight.
  std::optional<GroupFault> check(TimePoint now) const;
  Duration until_check(TimePoint now) const;

 private:
  static constexpr Duration kStall = std::chrono::seconds(1);        // of this process's own loop
  static constexpr Duration kStartStall = std::chrono::seconds(60);  // or a tenth of start_timeout

  struct DeviceLoop {
    TimePoint heard;
    StepId last_step = 0;  // as it last said
    int32_t loads = 0;     // of adapters, not answered yet
  };
  DeviceLoop& of(int32_t rank) { return loops_[static_cast<size_t>(rank)]; }
  const DeviceLoop& of(int32_t rank) const { return loops_[static_cast<size_t>(rank)]; }
  TimePoint last_sign(int32_t rank) const;
  std::optional<TimePoint> stalled() const;
  std::optional<GroupFault> check_step(TimePoint now) const;

  const HealthLimits limits_;
  const GroupMembership& members_;
  StepGather& steps_;
  std::vector<DeviceLoop> loops_;
  StartBoard board_;
  RankPositions positions_;
  TimePoint waiting_since_;
  TimePoint due_;
};

}  // namespace refrain
