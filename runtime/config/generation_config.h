#pragma once
// Sampling defaults of requests: what a model's generation_config.json recommends, and what
// --override-generation-config says instead. Plain data, read once at start.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace refrain {

// Absent: the API's own default.
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_new_tokens;  // the most that any request may have

  bool operator==(const GenerationDefaults&) const = default;
  // "temperature 0.6, top_k 20"; empty when there are none.
  std::string describe() const;
};

// `source`: auto (the model's generation_config.json, if there is one), vllm (the API's own
// defaults) or the directory of another generation_config.json. `overrides`: a JSON object that
// wins over it; empty: none. Errors name the file or the option, and the field.
Result<GenerationDefaults> load_generation_defaults(const std::string& model,
                                                    const std::string& source,
                                                    const std::string& overrides);

}  // namespace refrain
