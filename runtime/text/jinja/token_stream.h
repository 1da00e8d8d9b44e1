#pragma once
// A cursor over tokens, shared by the parsers of statements and expressions. Lives for one parse.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/lexer.h"
#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token take() {
    Token token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const {
    return is(TokenKind::kOperator) && current().text == text;
  }
  bool is_name(std::string_view text) const {
    return is(TokenKind::kName) && current().text == text;
  }
  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (take(), true); }

  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) fail(fmt::format("expected '{}', found {}", text, describe()));
  }
  void expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail(fmt::format("expected {}, found {}", what, describe()));
    take();
  }
  std::string expect_name() {
    if (!is(TokenKind::kName)) fail(fmt::format("expected a name, found {}", describe()));
    return take().text;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", line(), what));
  }
  std::string describe() const {
    switch (current().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      default:
        return "'" + current().text + "'";
    }
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace refrain::jinja
