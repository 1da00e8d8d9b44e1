#pragma once
// A cursor over tokens, shared by the statement and the expression parser. Lives for one parse.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/lexer.h"

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

// Counts how deep the parser is inside itself.
class ParseNesting {
 public:
  static constexpr int kMax = 100;  // of parentheses, lists, conditions
  ParseNesting(int& depth, const TokenStream& tokens) : depth_(depth) {
    if (++depth_ > kMax) tokens.fail("an expression is nested too deeply");
  }
  ~ParseNesting() { --depth_; }
  ParseNesting(const ParseNesting&) = delete;
  ParseNesting& operator=(const ParseNesting&) = delete;

 private:
  int& depth_;
};

// Expressions, from loosest to tightest binding. One object for one parse.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // with_condition: `a if b else c` is allowed (not in a for's iterable).
  ExprPtr expression(bool with_condition = true);
  ExprPtr tuple(bool with_condition = true);  // a, b, c without parentheses
  ExprPtr assign_target(bool allow_attribute);
  ExprPtr filter_chain(ExprPtr input, bool inline_start);
  ExprPtr postfix(ExprPtr expr);

 private:
  ExprPtr condition();
  ExprPtr logical_or();
  ExprPtr logical_and();
  ExprPtr logical_not();
  ExprPtr compare();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter);
  ExprPtr primary();
  ExprPtr number();
  ExprPtr parenthesized();
  ExprPtr list_literal();
  ExprPtr dict_literal();
  ExprPtr subscript(ExprPtr target);
  ExprPtr subscript_item(ExprPtr target);
  ExprPtr filters_and_tests(ExprPtr expr);
  ExprPtr test(ExprPtr target);
  ExprPtr call(ExprPtr target);
  void call_arguments(Expr& call);
  ExprPtr make(ExprKind kind);
  bool tuple_ends() const;

  TokenStream& tokens_;
  int depth_ = 0;
  int nodes_ = 0;
};

}  // namespace refrain::jinja
