#pragma once
// GPT-2's byte alphabet: each byte as one printable character, the form byte-level vocabularies
// are written in. Pure functions.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace refrain::text {

// Code point of each byte.
std::array<char32_t, 256> byte_to_char();

// "Ġhello" -> " hello"; nothing if a character is outside the alphabet. `text` is valid UTF-8.
std::optional<std::string> chars_to_bytes(std::string_view text);

std::string bytes_to_chars(std::string_view bytes);

}  // namespace refrain::text
