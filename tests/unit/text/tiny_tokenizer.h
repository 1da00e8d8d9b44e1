#pragma once
// Small tokenizers written by hand, for behaviour that needs no real vocabulary.

#include <string>

#include "runtime/base/json.h"
#include "runtime/text/tokenizer.h"

namespace refrain::text {

// Byte-level, like GPT-2's: the 256 bytes, a few merges, special tokens <s> (256 + 5) and </s>.
nlohmann::json byte_level_json();

// SentencePiece-like: "▁" for spaces, <0x..> for bytes that have no token, Llama 2's decoder.
nlohmann::json byte_fallback_json();

// Loads it; a failure to load fails the test.
Tokenizer load_tokenizer(const nlohmann::json& tokenizer, const nlohmann::json& config = {});
// The error of loading it.
std::string load_error(const nlohmann::json& tokenizer, const nlohmann::json& config = {});

}  // namespace refrain::text
