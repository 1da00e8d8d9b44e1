#pragma once
// bad_words of requests: from strings to the token sequences that an answer must not have, as vLLM
// makes them. Pure.

#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

inline constexpr size_t kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordBytes = 256;

// Each word without a space before it, and with one where that gives as many tokens with another
// beginning: the same word inside a text.
Result<std::vector<std::vector<TokenId>>> encode_bad_words(const text::Tokenizer& tokenizer,
                                                           const std::vector<std::string>& words);

}  // namespace refrain
