#include "runtime/engine/engine_reports.h"

#include <utility>

#include "runtime/base/log.h"
#include "runtime/engine/engine_stats.h"

namespace refrain {

void EngineReports::state(int32_t index, GroupState state, const GroupServices& groups) {
  const std::string detail = groups[index].detail();
  if (group_state_handler) group_state_handler(index, state, detail);
  const GroupState best = best_of(groups.states());
  if (best == std::exchange(best_, best) && groups.size() > 1) return;
  if (state_handler) state_handler(best, detail);
}

void EngineReports::progress(const StartProgress& progress) const {
  if (progress_handler) progress_handler(progress);
}

void EngineReports::loss(GroupLoss loss) const {
  loss.num_requests = loss.requests.size();
  if (loss.requests.size() > GroupLoss::kMaxRequests) loss.requests.resize(GroupLoss::kMaxRequests);
  if (loss_handler) loss_handler(loss);
}

void EngineReports::isolation(Isolation isolation) const {
  if (isolation_handler) isolation_handler(isolation);
}

void EngineReports::audit(int32_t index, const ipc::StepResult& result) {
  const ipc::AuditResult& audit = result.audit;
  if (audit.differences == 0) return;
  log::error("audit of step {}: {} differences, the first: {}", result.step, audit.differences,
             audit.first);
  if (audits_told_ == Engine::kMaxAuditRecords) return;
  ++audits_told_;
  if (audit_handler) audit_handler({result.step, audit.differences, audit.first, index});
}

}  // namespace refrain
