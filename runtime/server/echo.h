#pragma once
// What an echo puts in front of a completion's choices. Pure functions; any thread.

#include <string>
#include <vector>

#include "runtime/server/api_request.h"

namespace refrain {
namespace text {
class Tokenizer;
}

// One text for each of `prompts`: the client's own where it gave a whole one, else that of the
// tokens. None without an echo. Refused where all choices together would repeat too much.
Result<std::vector<std::string>> echoed_texts(const ApiRequest& request,
                                              const std::vector<std::vector<TokenId>>& prompts,
                                              int64_t max_model_len,
                                              const text::Tokenizer& tokenizer);

}  // namespace refrain
