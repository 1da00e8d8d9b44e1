#include "runtime/text/jinja/string_literal.h"

#include <cctype>

#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

bool read_hex(std::string_view body, size_t at, size_t count, char32_t& code_point) {
  if (at + count > body.size()) return false;
  code_point = 0;
  for (const char c : body.substr(at, count)) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return false;
    const int digit =
        std::isdigit(static_cast<unsigned char>(c)) != 0 ? c - '0' : (c | 0x20) - 'a' + 10;
    code_point = code_point * 16 + static_cast<char32_t>(digit);
  }
  return code_point < 0x110000 && (code_point < 0xD800 || code_point > 0xDFFF);
}

// Characters that one letter behind the backslash stands for.
char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return '\0';
  }
}

}  // namespace

bool unescape_literal(std::string_view body, std::string& out) {
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\') {
      out.push_back(body[i]);
      continue;
    }
    if (++i >= body.size()) return false;
    const char c = body[i];
    char32_t code_point = 0;
    if (const char plain = simple_escape(c); plain != '\0') {
      out.push_back(plain);
    } else if (c == '\n') {
      continue;  // a line that goes on
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (!read_hex(body, i + 1, count, code_point)) return false;
      text::append_utf8(out, code_point);
      i += count;
    } else if (c >= '0' && c <= '7') {
      size_t digits = 0;
      for (; digits < 3 && i + digits < body.size() && body[i + digits] >= '0' &&
             body[i + digits] <= '7';
           ++digits)
        code_point = code_point * 8 + static_cast<char32_t>(body[i + digits] - '0');
      text::append_utf8(out, code_point);
      i += digits - 1;
    } else if (c == 'N') {
      return false;  // \N{name}
    } else {         // Python keeps what it does not know
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return true;
}

}  // namespace refrain::jinja
