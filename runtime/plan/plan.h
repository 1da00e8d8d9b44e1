#pragma once
// `refrain plan FILE.json`: explains a configuration without a model or a device (spec CG-33). The
// dispatcher that serves gives the answers. Pure; any thread.

#include <string>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"

namespace refrain {

// The plan as indented JSON. A bad field is an error whose `field` names it.
Result<std::string> explain_plan(const std::string& json);
// The same of a server's options; `batches` is the JSON list.
Result<std::string> explain_plan(const ipc::WorkerConfig& config, const std::string& batches);

// {"error": {"field": …, "message": …}}, printed before exit 2.
std::string plan_error(const Error& error);
inline constexpr int kExitBadPlan = 2;

}  // namespace refrain
