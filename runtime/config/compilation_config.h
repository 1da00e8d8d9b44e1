#pragma once
// --compilation-config: vLLM's JSON object of graph settings. Parsed once at start.

#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"

namespace refrain {

// Applies what concerns graphs to the worker configuration: cudagraph_mode,
// cudagraph_capture_sizes, max_cudagraph_capture_size, splitting_ops, and the older use_cudagraph
// and full_cuda_graph. Gives a sentence for each of vLLM's other keys, which have no effect here.
// Unknown keys and wrong types are errors that name the key.
Result<std::vector<std::string>> apply_compilation_config(const std::string& json,
                                                          ipc::WorkerConfig& config);

// vLLM's other ways to write it, joined into one --compilation-config at the end: -cc for the
// option, and single keys, -cc.KEY=VALUE, -O.KEY VALUE or --compilation-config.KEY.INNER=VALUE,
// which win over the object that the words have besides. A value that is no JSON is a string.
std::vector<std::string> join_compilation_config(std::vector<std::string> words);

}  // namespace refrain
