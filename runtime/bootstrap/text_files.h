#pragma once
// What a program that has clients reads of a model: its configuration and all that texts need.

#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"
#include "runtime/server/api_server.h"

namespace refrain {

// The model's configuration, by which `config` is completed and checked (check_config.h).
Result<ModelConfig> read_model(EngineConfig& config);
// Tokenizer, chat template and the process that compiles clients' grammars; of a completed
// configuration.
Result<TextSide> load_text(const EngineConfig& config, const ModelConfig& model);

}  // namespace refrain
