#pragma once
// UTF-8: reading and writing code points, and replacing what is not valid. Pure functions.

#include <cstdint>
#include <string>
#include <string_view>

namespace refrain::text {

inline constexpr char32_t kReplacementChar = 0xFFFD;
inline constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

// What starts at a position: a whole character, the valid beginning of one that the text cuts off,
// or bytes that no character begins with (length: the maximal invalid subpart, Unicode 3.9 D93b).
enum class Utf8Kind : uint8_t { kChar, kCutOff, kInvalid };

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kInvalid;
  char32_t code_point = kReplacementChar;
  uint32_t length = 1;  // bytes, at least 1
};

// Precondition: at < text.size().
Utf8Unit read_utf8(std::string_view text, size_t at);

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view text);

// Each maximal invalid subpart becomes U+FFFD (as Python's errors='replace').
std::string replace_invalid_utf8(std::string_view text);

// Moves whole characters from the front of `bytes` to `out`, invalid parts as U+FFFD; what is left
// is empty or the beginning of one character.
void drain_utf8(std::string& bytes, std::string& out);

// Bytes of the character that ends just before `at` (valid UTF-8; at > 0).
size_t previous_char_length(std::string_view text, size_t at);

// Calls back with each character of valid UTF-8 and its bytes.
template <class F>
void for_each_char(std::string_view text, F&& call) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    call(unit.code_point, text.substr(i, unit.length));
    i += unit.length;
  }
}

}  // namespace refrain::text
