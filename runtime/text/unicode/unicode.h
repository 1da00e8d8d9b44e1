#pragma once
// Unicode properties and normal forms (libutf8proc). Pure functions on valid UTF-8.

#include <cstdint>
#include <string>
#include <string_view>

namespace refrain::text {

bool is_white_space(char32_t c);  // property White_Space
bool is_word_char(char32_t c);    // Alphabetic, Mark, Nd, Pc: what \w means in a tokenizer's regex
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_punctuation(char32_t c);  // P*, and all ASCII punctuation (which includes S* like '$')
bool is_mark(char32_t c);         // M*
bool is_printable(char32_t c);    // Python's str.isprintable, character by character

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

std::string normalize(std::string_view text, NormalForm form);

// Character by character, without context (no final sigma), as Rust's char::to_lowercase.
std::string to_lower(std::string_view text);
std::string to_upper(std::string_view text);

}  // namespace refrain::text
