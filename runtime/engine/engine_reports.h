#pragma once
// What the engine tells the program around it, beside answers: states of groups, the start's
// progress, losses, isolations, audits. A handler that is not set hears nothing. Owned by the
// engine, on its executor.

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/group_services.h"

namespace refrain {

class EngineReports {
 public:
  std::function<void(GroupState, const std::string&)> state_handler;
  std::function<void(int32_t, GroupState, const std::string&)> group_state_handler;
  std::function<void(const StartProgress&)> progress_handler;
  std::function<void(const GroupLoss&)> loss_handler;
  std::function<void(Isolation)> isolation_handler;
  std::function<void(const AuditFinding&)> audit_handler;

  // A group is in another state: of all groups the best one counts.
  void state(int32_t index, GroupState state, const GroupServices& groups);
  void progress(const StartProgress& progress) const;
  void loss(GroupLoss loss) const;  // with all requests that it hits
  void isolation(Isolation isolation) const;
  // What the ranks' audits of a step came to (CG-41): the run goes on, as a difference says that
  // numbers are wrong, not that they will be.
  void audit(int32_t index, const ipc::StepResult& result);

 private:
  GroupState best_ = GroupState::kWaiting;  // as it was told
  int audits_told_ = 0;
};

}  // namespace refrain
