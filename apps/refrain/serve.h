#pragma once
// `refrain serve`: one coordinator and its workers on this machine, supervised. Blocks main's
// thread until SIGINT, SIGTERM or a failure that a restart does not mend.

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

// `arguments`: what serve was given; the coordinator gets the same. Returns the exit code.
int run_serve(const EngineConfig& config, const std::vector<std::string>& arguments);

}  // namespace refrain
