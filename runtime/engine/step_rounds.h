#pragma once
// Plans the steps of the groups that serve. A group mostly steps by itself. Groups whose model
// exchanges something with its replicas in each step (CG-17) step in rounds: a step of every one,
// idle ones without rows, and none while another is not there. Who loses one of these loses all:
// the others' steps would wait for it. Owned by the engine, on its executor.

#include <cstddef>
#include <cstdint>
#include <set>

#include "runtime/engine/group_services.h"

namespace refrain {

class StepRounds {
 public:
  explicit StepRounds(GroupServices& groups) : groups_(groups) {}

  // What this ready group, with its replicas, can run now. Keeps the pipeline full: step n+1 goes
  // out while step n runs, shortly before its end.
  void plan(int32_t index);
  // The workers of this group are gone, with so many requests in flight; those of the others go
  // too. Whether one request alone was in flight, over all of them.
  bool lost(int32_t index, size_t in_flight, bool for_good);

 private:
  void plan_together();
  bool all_serve() const;

  GroupServices& groups_;
  bool together_ = false;        // some group said so
  std::set<int32_t> going_too_;  // told to go, as another group was lost
  size_t in_flight_ = 0;         // over all, when that one was
};

}  // namespace refrain
