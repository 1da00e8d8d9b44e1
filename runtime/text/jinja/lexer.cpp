#include "runtime/text/jinja/lexer.h"

#include <fmt/format.h>

#include <cctype>

#include "runtime/text/jinja/string_literal.h"
#include "runtime/text/jinja/value.h"
#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

// Every line end becomes "\n"; one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_space_at(std::string_view text, size_t at, size_t& length) {
  const text::Utf8Unit unit = text::read_utf8(text, at);
  length = unit.length;
  // Python's \s also takes the four separators U+001C to U+001F.
  return text::is_white_space(unit.code_point) ||
         (unit.code_point >= 0x1C && unit.code_point <= 0x1F);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", line_, what));
  }
  bool next_is(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t count) {
    for (size_t i = 0; i < count && at_ < source_.size(); ++i)
      if (source_[at_++] == '\n') ++line_;
  }
  void skip_spaces() {
    size_t length = 0;
    while (at_ < source_.size() && is_space_at(source_, at_, length)) advance(length);
  }

  // Text up to the next tag, then the tag.
  void data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        emit_data(source_.size(), '\0', false);
        return;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    emit_data(tag, has_sign ? sign : '\0', kind != '{');
    advance(has_sign ? 3 : 2);
    if (kind == '#') return comment();
    if (kind == '%' && raw_block()) return;
    push(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    inside(kind == '{' ? "}}" : "%}");
  }

  // sign: of the tag behind; lstrip: that tag is one lstrip_blocks applies to.
  void emit_data(size_t end, char sign, bool lstrip) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    size_t keep = text.size();
    if (sign == '-') {
      while (keep > 0) {
        const size_t length = text::previous_char_length(text, keep);
        size_t ignored = 0;
        if (!is_space_at(text, keep - length, ignored)) break;
        keep -= length;
      }
    } else if (sign != '+' && lstrip) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) && all_spaces(text.substr(line_start)))
        keep = line_start;
    }
    if (keep > 0) push(TokenKind::kData, std::string(text.substr(0, keep)));
    advance(end - at_);
  }

  static bool all_spaces(std::string_view text) {
    size_t length = 0;
    for (size_t i = 0; i < text.size(); i += length)
      if (!is_space_at(text, i, length)) return false;
    return true;
  }

  // Behind "-%}" or the like: what white space goes with the tag. trims: the tag is one that
  // trim_blocks applies to.
  void end_tag(char sign, bool trims) {
    const size_t begin = at_;
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && trims && peek() == '\n') {
      advance(1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) fail("a comment '{#' without its '#}'");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance(close + 2 - at_);
    end_tag(sign == '-' || sign == '+' ? sign : '\0', true);
  }

  // {% raw %} … {% endraw %}; false if the block is another one.
  bool raw_block() {
    const size_t start = at_;
    const int line = line_;
    skip_spaces();
    const bool is_raw =
        next_is("raw") && std::isalnum(static_cast<unsigned char>(peek(3))) == 0 && peek(3) != '_';
    if (is_raw) {
      advance(3);
      skip_spaces();
      const char sign = peek() == '-' ? '-' : '\0';
      if (sign != '\0') advance(1);
      if (next_is("%}")) {
        advance(2);
        if (sign == '-') skip_spaces();
        line_starting_ = false;
        raw_text();
        return true;
      }
    }
    at_ = start;
    line_ = line;
    return false;
  }

  void raw_text() {
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t i = tag + 2;
      const char sign =
          i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : '\0';
      if (sign != '\0') ++i;
      size_t length = 0;
      while (i < source_.size() && is_space_at(source_, i, length)) i += length;
      if (source_.compare(i, 6, "endraw") != 0) continue;
      emit_data(tag, sign, true);
      advance(i + 6 - at_);
      skip_spaces();
      const char end_sign = peek() == '-' || peek() == '+' ? peek() : '\0';
      if (end_sign != '\0') advance(1);
      if (!next_is("%}")) fail("malformed '{% endraw %}'");
      advance(2);
      return end_tag(end_sign, true);
    }
    fail("'{% raw %}' without its '{% endraw %}'");
  }

  // Tokens of an expression or a block, up to and with `close`.
  void inside(std::string_view close) {
    std::string brackets;
    for (;;) {
      skip_spaces();
      if (at_ >= source_.size()) fail(fmt::format("a tag without its '{}'", close));
      if (brackets.empty() && close_tag(close)) return;
      const char c = peek();
      if (c == '"' || c == '\'') {
        string_literal(c);
      } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        number();
      } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
                 static_cast<unsigned char>(c) >= 0x80) {
        name();
      } else {
        operator_token(brackets);
      }
    }
  }

  bool close_tag(std::string_view close) {
    const bool block = close == "%}";
    char sign = '\0';
    if (peek() == '-' || (block && peek() == '+')) sign = peek();
    if (!std::string_view(source_).substr(at_ + (sign != '\0' ? 1 : 0)).starts_with(close))
      return false;
    push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
    advance(sign != '\0' ? 3 : 2);
    end_tag(sign, block);
    return true;
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size()) {
      const auto c = static_cast<unsigned char>(peek());
      if (std::isalnum(c) == 0 && c != '_' && c < 0x80) break;
      advance(1);
    }
    push(TokenKind::kName, source_.substr(begin, at_ - begin));
  }

  void digits(std::string& text, bool hex) {
    while (std::isdigit(static_cast<unsigned char>(peek())) != 0 || peek() == '_' ||
           (hex && std::isxdigit(static_cast<unsigned char>(peek())) != 0)) {
      if (peek() != '_') text.push_back(peek());
      advance(1);
    }
  }

  void number() {
    std::string text;
    if (peek() == '0' && (peek(1) == 'x' || peek(1) == 'X')) {
      advance(2);
      text = "0x";
      digits(text, true);
      return push(TokenKind::kInteger, text);
    }
    digits(text, false);
    bool is_float = false;
    if (peek() == '.' && std::isdigit(static_cast<unsigned char>(peek(1))) != 0) {
      is_float = true;
      advance(1);
      text.push_back('.');
      digits(text, false);
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if ((peek() == 'e' || peek() == 'E') &&
        std::isdigit(static_cast<unsigned char>(peek(1 + sign))) != 0) {
      is_float = true;
      text += source_.substr(at_, 1 + sign);
      advance(1 + sign);
      digits(text, false);
    }
    push(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
  }

  void string_literal(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string without its closing quote");
    const std::string body = source_.substr(at_ + 1, end - at_ - 1);
    std::string text;
    if (!unescape_literal(body, text)) fail("a malformed escape in the string '" + body + "'");
    push(TokenKind::kString, std::move(text));
    advance(end + 1 - at_);
  }

  void operator_token(std::string& brackets) {
    for (const char* op : {"//", "**", "==", "!=", ">=", "<="}) {
      if (next_is(op)) {
        push(TokenKind::kOperator, op);
        return advance(2);
      }
    }
    const char c = peek();
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      fail(fmt::format("unexpected character '{}'", c));
    if (c == '(' || c == '[' || c == '{') brackets.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets.empty() || brackets.back() != open) fail(fmt::format("unexpected '{}'", c));
      brackets.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    advance(1);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace refrain::jinja
