#pragma once
// A request as one JSON object, outside of HTTP: a line of `refrain generate`, or what the library
// is given. A pure function of JSON, but for a grammar, which is compiled on trial; errors name the
// field.

#include <optional>

#include "runtime/config/generation_config.h"
#include "runtime/engine/request.h"
#include "runtime/server/json_fields.h"
#include "runtime/server/text_side.h"

namespace refrain {

// Of lines that do not say it.
struct LineDefaults {
  int64_t max_tokens = 16;
  std::optional<double> temperature;
};

// One of `prompt`, `messages` and `prompt_ids`, OpenAI's and vLLM's sampling fields, and those of
// structured output. `logprobs` is a number, or true with top_logprobs.
Result<GenerateRequest> read_request_line(const OrderedJson& line, const TextSide& text,
                                          const GenerationDefaults& model,
                                          const LineDefaults& defaults);

}  // namespace refrain
