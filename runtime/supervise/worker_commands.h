#pragma once
// How the workers of a configuration are started.

#include <string>
#include <vector>

#include "runtime/config/engine_config.h"

namespace refrain {

// By group the argv of every rank's worker, for a coordinator at this address. Groups are given the
// devices of the machine in order.
std::vector<std::vector<std::vector<std::string>>> worker_commands(const EngineConfig& config,
                                                                   const std::string& address);

}  // namespace refrain
