#pragma once
// Files of prompts: JSON lines (--dataset-name custom) and ShareGPT's JSON. Errors name the line.

#include <vector>

#include "runtime/load/load_prompts.h"

namespace refrain {

struct GivenPrompt {
  LoadPrompt prompt;
  int64_t input_len = 0;  // above 0: the prompt is to be made up, that long
};

// Never empty. A line is an object with prompt, prompt_ids (or prompt_token_ids), messages or
// input_len, and output_len (or output_tokens, max_tokens).
Result<std::vector<GivenPrompt>> read_custom(const LoadOptions& options);
// Never empty; shuffled by the seed. The lengths that vLLM leaves out are left out.
Result<std::vector<GivenPrompt>> read_sharegpt(const LoadOptions& options,
                                               const text::Tokenizer* tokenizer);

}  // namespace refrain
