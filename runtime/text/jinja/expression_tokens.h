#pragma once
// The tokens of a template as expressions are parsed from them: with the nodes that they become, of
// which there is a limit. One object for one parse.

#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/token_stream.h"

namespace refrain::jinja {

class ExpressionTokens : public TokenStream {
 public:
  static constexpr int kMaxDepth = 100;   // of parentheses, lists, conditions; links of a chain
  static constexpr int kMaxNodes = 2000;  // of one expression: its tree may be a chain

  using TokenStream::TokenStream;

  // Where an expression begins: the nodes of an outermost one are counted from here on.
  void begin() {
    if (depth_ == 0) nodes_ = 0;
  }
  // A node at the present token's line, counted.
  ExprPtr make(ExprKind kind) {
    if (++nodes_ > kMaxNodes) fail("an expression is too long");
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line();
    return expr;
  }
  // Fails where a chain that the parser follows in a loop has more links than it may.
  void check_chain(int links, std::string_view of) const {
    if (links > kMaxDepth) fail(fmt::format("a chain of {} is too long", of));
  }

  // As long as it lives, the parser is inside itself once more; so the stack stays bounded.
  class Nesting {
   public:
    explicit Nesting(ExpressionTokens& tokens) : depth_(tokens.depth_) {
      if (++depth_ > kMaxDepth) tokens.fail("an expression is nested too deeply");
    }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int& depth_;
  };

 private:
  int depth_ = 0;
  int nodes_ = 0;
};

}  // namespace refrain::jinja
