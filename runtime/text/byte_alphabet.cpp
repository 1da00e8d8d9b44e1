#include "runtime/text/byte_alphabet.h"

#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The bytes that do not stand for themselves take 0x100, 0x101, ... in order.
constexpr std::array<char32_t, 256> make_table() {
  std::array<char32_t, 256> table{};
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) table[byte] = stands_for_itself(byte) ? byte : next++;
  return table;
}

constexpr auto kTable = make_table();

constexpr std::array<int16_t, 0x144> make_inverse() {
  std::array<int16_t, 0x144> inverse{};
  for (auto& entry : inverse) entry = -1;
  for (uint32_t byte = 0; byte < 256; ++byte) inverse[kTable[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

constexpr auto kInverse = make_inverse();

}  // namespace

std::array<char32_t, 256> byte_to_char() { return kTable; }

std::optional<std::string> chars_to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (unit.code_point >= kInverse.size() || kInverse[unit.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kInverse[unit.code_point]));
    i += unit.length;
  }
  return bytes;
}

std::string bytes_to_chars(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(text, kTable[static_cast<uint8_t>(byte)]);
  return text;
}

}  // namespace refrain::text
