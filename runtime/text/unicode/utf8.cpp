#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

struct Lead {
  uint32_t length;
  uint8_t low, high;  // range of the second byte
};

// Table 3-7 of the Unicode standard: well-formed byte sequences.
Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit read_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return {Utf8Kind::kChar, first, 1};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {};
  char32_t code_point = first & (0xFFU >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (at + i >= text.size()) return {Utf8Kind::kCutOff, kReplacementChar, i};
    const uint8_t next = byte(at + i);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (next < low || next > high) return {Utf8Kind::kInvalid, kReplacementChar, i};
    code_point = (code_point << 6) | (next & 0x3FU);
  }
  return {Utf8Kind::kChar, code_point, lead.length};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18));
    put(0x80U | ((code_point >> 12) & 0x3FU));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Unit unit = read_utf8(text, i);
    if (unit.kind != Utf8Kind::kChar) return false;
    i += unit.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (unit.kind == Utf8Kind::kChar) {
      out.append(text.substr(i, unit.length));
    } else {
      out.append(kReplacementBytes);
    }
    i += unit.length;
  }
  return out;
}

void drain_utf8(std::string& bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Unit unit = read_utf8(bytes, i);
    if (unit.kind == Utf8Kind::kCutOff) break;
    if (unit.kind == Utf8Kind::kChar) {
      out.append(bytes, i, unit.length);
    } else {
      out.append(kReplacementBytes);
    }
    i += unit.length;
  }
  bytes.erase(0, i);
}

size_t previous_char_length(std::string_view text, size_t at) {
  size_t length = 1;
  while (length < at && length < 4 && (static_cast<uint8_t>(text[at - length]) & 0xC0U) == 0x80)
    ++length;
  return length;
}

}  // namespace refrain::text
