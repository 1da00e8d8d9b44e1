#pragma once
// Bounds on what a request holds and is told beside text, over all its choices: a whole answer is
// kept until its last choice has ended. Pure functions; an error names the field.

#include <cstdint>
#include <vector>

#include "runtime/server/api_request.h"

namespace refrain {

// `prompts`: token ids, each of which gets request.n choices.
Status check_answer_size(const ApiRequest& request,
                         const std::vector<std::vector<TokenId>>& prompts, int64_t max_model_len);
// What a whole answer tells of `generated` tokens, and of the prompts' ids. Asked again while
// tokens come: without max_tokens nobody knows before how many there will be.
Status check_told(const ApiRequest& request, int64_t prompt_tokens, int64_t generated);

}  // namespace refrain
