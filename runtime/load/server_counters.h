#pragma once
// What a Refrain server counts that no measurement may hide (R-21, CG-41). Pure.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace refrain {

struct ServerCounters {
  uint64_t group_restarts = 0;          // worker groups lost
  uint64_t requests_resumed = 0;        // after that
  uint64_t requests_without_logit = 0;  // the model had no finite logit
  uint64_t audit_differences = 0;       // beyond the bound
};

// Of a page of /metrics; nothing when it is not Refrain's, an error when one is missing.
Result<std::optional<ServerCounters>> read_counters(const std::string& metrics);
// An error that says what moved, and that there are no figures therefore.
Status undisturbed(const ServerCounters& before, const ServerCounters& after);

}  // namespace refrain
