#pragma once
// All that can be checked of a configuration before any process is started. Pure.

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"

namespace refrain {

// Completes the configuration from the model's (finish_engine_config), resolves its graphs as the
// workers will, and checks the names of attention backend and splitting ops. Errors name the
// option.
Status check_config(EngineConfig& config, const ModelConfig& model);

}  // namespace refrain
