#pragma once
// `refrain plan FILE.json`: explains a configuration without a model or a device (spec CG-33). The
// dispatcher that serves gives the answers. Pure; any thread.

#include <string>

#include "runtime/base/result.h"

namespace refrain::worker {

// The plan as indented JSON. A bad field is an error whose `field` names it.
Result<std::string> explain_plan(const std::string& json);

// {"error": {"field": …, "message": …}}, printed before exit 2.
std::string plan_error(const Error& error);
inline constexpr int kExitBadPlan = 2;

}  // namespace refrain::worker
