#include "runtime/text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<uint8_t>(c) >= 0x80) return false;
  return true;
}

// So characters that are Alphabetic all the same: circled and squared letters.
bool is_enclosed_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

template <class Map>
std::string map_chars(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    map(out, unit.code_point);
    i += unit.length;
  }
  return out;
}

// Decomposed code points of `text`, each run of combining marks in canonical order. (utf8proc's own
// ordering is quadratic in the run's length, which a hostile text can choose.)
std::vector<utf8proc_int32_t> decompose(std::string_view text, int options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  utf8proc_int32_t buffer[64];
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.code_point), buffer, 64,
                                static_cast<utf8proc_option_t>(options), nullptr);
    REFRAIN_CHECK(count >= 0 && count <= 64, "decomposing U+{:04X} failed",
                  static_cast<uint32_t>(unit.code_point));
    out.insert(out.end(), buffer, buffer + count);
    i += unit.length;
  }
  const auto combining = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (size_t i = 0; i < out.size();) {
    size_t end = i;
    while (end < out.size() && combining(out[end]) != 0) ++end;
    if (end - i > 1)
      std::stable_sort(out.begin() + static_cast<ptrdiff_t>(i),
                       out.begin() + static_cast<ptrdiff_t>(end),
                       [&](auto a, auto b) { return combining(a) < combining(b); });
    i = end + 1;
  }
  return out;
}

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_char(char32_t c) {
  if (c < 0x80)
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return is_enclosed_letter(c);
  }
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto cat = category(c);
  return cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !is_word_char(c) ? true : c == '_';
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto cat = category(c);
  return cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC || cat == UTF8PROC_CATEGORY_ME;
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= ' ' && c < 0x7F;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  std::vector<utf8proc_int32_t> points =
      decompose(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  auto count = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    count = utf8proc_normalize_utf32(
        points.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    REFRAIN_CHECK(count >= 0, "composing text failed: {}", utf8proc_errmsg(count));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  return out;
}

std::string to_lower(std::string_view text) {
  return map_chars(text, [](std::string& out, char32_t c) {
    if (c == 0x130) {  // the one unconditional lower-case mapping to two characters
      out += "i\xCC\x87";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

std::string to_upper(std::string_view text) {
  return map_chars(text, [](std::string& out, char32_t c) {
    if (c == 0xDF) {
      out += "SS";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
    }
  });
}

}  // namespace refrain::text
