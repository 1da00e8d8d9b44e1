#pragma once
// What a request may hold once its choices are many, and may be told beside text: an answer is kept
// until its last choice has ended, and each of a completion's choices tells of its prompt.
// Pure functions; an error names the field and comes before anything is computed.

#include <cstdint>
#include <vector>

#include "runtime/server/api_request.h"

namespace refrain {

// `prompts`: token ids, each of which gets request.n choices.
Status check_answer_size(const ApiRequest& request,
                         const std::vector<std::vector<TokenId>>& prompts);

}  // namespace refrain
