#pragma once
// Whether a model generates or pools, and how: --runner, --convert and --pooler-config as vLLM has
// them, and what a sentence-transformers folder says (modules.json). Read once at start.

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"

namespace CLI {
class App;
}

namespace refrain {

// Declares the options.
void add_pooling_options(CLI::App& app, EngineConfig& config);

// Fills config.worker.pooling and config.pooling_normalize. What does not go with a model that
// pools is an error that names the option.
Status finish_pooling(EngineConfig& config, const ModelConfig& model);

}  // namespace refrain
