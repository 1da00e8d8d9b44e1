#pragma once
// --speculative-config: vLLM's JSON object for speculative decoding. Parsed once at start.

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"

namespace refrain {

// Applies num_speculative_tokens and, for method ngram, prompt_lookup_min and prompt_lookup_max,
// whose defaults are vLLM's; for methods draft_model, eagle and eagle3, model and
// draft_tensor_parallel_size. Other methods, unknown keys and wrong values are errors that name the
// key.
Status apply_speculative_config(const std::string& json, EngineConfig& config);

// Whether the draft model, if there is one, goes with the model and its ranks; reads its
// config.json.
Status check_draft_model(const EngineConfig& config, const ModelConfig& model);

}  // namespace refrain
