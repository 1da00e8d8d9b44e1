// What the ranks' audits of a step came to (CG-41): counted, logged, told to the supervisor. The
// run goes on: a difference says that numbers are wrong, not that they will be.

#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"

namespace refrain {

void EngineCore::note_audit(const ipc::StepResult& result) {
  const ipc::AuditResult& audit = result.audit;
  stats_.audited(audit);
  if (audit.differences == 0) return;
  log::error("audit of step {}: {} differences, the first: {}", result.step, audit.differences,
             audit.first);
  if (audits_told_ == Engine::kMaxAuditRecords) return;
  ++audits_told_;
  if (audit_handler) audit_handler({result.step, audit.differences, audit.first});
}

}  // namespace refrain
