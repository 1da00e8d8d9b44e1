#pragma once
// --compilation-config: vLLM's JSON object of graph settings. Parsed once at start.

#include <string>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"

namespace refrain {

// Applies {"cudagraph_mode": …, "cudagraph_capture_sizes": […], "max_cudagraph_capture_size": n,
// "splitting_ops": […]} to the worker configuration. Unknown keys and wrong types are errors that
// name the key.
Status apply_compilation_config(const std::string& json, ipc::WorkerConfig& config);

}  // namespace refrain
