#include "ipc/protocol/utf8.h"

#include <cstdint>

namespace refrain::ipc {
namespace {

// Length of the well-formed character at the front of `text`, 0 when there is none.
size_t character_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  const uint8_t second = at(1);
  if (lead == 0xe0 && second < 0xa0) return 0;  // overlong
  if (lead == 0xed && second > 0x9f) return 0;  // surrogate
  if (lead == 0xf0 && second < 0x90) return 0;  // overlong
  if (lead == 0xf4 && second > 0x8f) return 0;  // past U+10FFFF
  return length;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string clean_text(std::string_view text, size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = character_length(text);
    const size_t taken = length == 0 ? 1 : length;
    if (clean.size() + taken > max_bytes) break;
    if (length == 0) {
      clean += '?';
    } else {
      clean += text.substr(0, length);
    }
    text.remove_prefix(taken);
  }
  return clean;
}

}  // namespace refrain::ipc
