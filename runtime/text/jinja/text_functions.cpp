// Functions on strings that methods and filters share.
#include <algorithm>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

constexpr size_t kMaxReplaced = size_t{64} << 20;

// What str.strip() takes off.
bool is_python_space(char32_t c) { return text::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t count) {
  size_t hits = 0;
  for (size_t at = 0; at < text.size() && (at = text.find(from, at)) != std::string_view::npos;
       at += std::max<size_t>(1, from.size()))
    ++hits;
  if (to.size() > 0 && hits > kMaxReplaced / to.size())
    throw TemplateError("replacing makes too long a text");
  std::string out;
  if (from.empty()) {  // between all characters
    int64_t done = 0;
    text::for_each_char(text, [&](char32_t, std::string_view bytes) {
      if (count < 0 || done++ < count) out += to;
      out += bytes;
    });
    if (count < 0 || done < count) out += to;
    return out;
  }
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t hit = text.find(from, at);
    if (hit == std::string_view::npos) break;
    out.append(text.substr(at, hit - at)).append(to);
    at = hit + from.size();
  }
  out.append(text.substr(at));
  return out;
}

std::string strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto drops = [&](std::string_view character) {
    return chars != nullptr ? chars->find(character) != std::string::npos
                            : is_python_space(text::read_utf8(character, 0).code_point);
  };
  while (left && !text.empty()) {
    const size_t length = text::read_utf8(text, 0).length;
    if (!drops(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const size_t length = text::previous_char_length(text, text.size());
    if (!drops(text.substr(text.size() - length))) break;
    text.remove_suffix(length);
  }
  return std::string(text);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = text::read_utf8(text, 0).length;
  return text::to_upper(text.substr(0, first)) + text::to_lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  text::for_each_char(text, [&](char32_t, std::string_view bytes) {
    const bool cased = text::to_lower(bytes) != text::to_upper(bytes);
    out += cased ? (in_word ? text::to_lower(bytes) : text::to_upper(bytes)) : std::string(bytes);
    in_word = cased;
  });
  return out;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  text::for_each_char(text, [&](char32_t, std::string_view bytes) { out.emplace_back(bytes); });
  return out;
}

size_t character_count(std::string_view text) {
  size_t count = 0;
  for (const char c : text)
    if ((static_cast<uint8_t>(c) & 0xC0U) != 0x80) ++count;
  return count;
}

}  // namespace refrain::jinja
