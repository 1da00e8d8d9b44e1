#include "runtime/text/jinja/parser.h"

#include <initializer_list>

#include "runtime/text/jinja/expression_parser.h"
#include "runtime/text/jinja/operand_parser.h"

namespace refrain::jinja {
namespace {

constexpr int kMaxDepth = 100;  // of nested blocks

using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    Block block = body({});
    return block;
  }

 private:
  using StatementPtr = std::unique_ptr<Statement>;

  StatementPtr make(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = tokens_.line();
    return statement;
  }

  bool at_end_of(Ends ends) const {
    for (const auto end : ends)
      if (tokens_.next().kind == TokenKind::kName && tokens_.next().text == end) return true;
    return false;
  }

  // Statements up to a block that begins with one of `ends`, whose name is the next token then.
  Block body(Ends ends) {
    Block block;
    if (++depth_ > kMaxDepth) tokens_.fail("blocks are nested too deeply");
    for (;;) {
      if (tokens_.is(TokenKind::kEnd)) {
        if (ends.size() > 0)
          tokens_.fail("expected '{% " + std::string(*(ends.end() - 1)) +
                       " %}', found the end of the template");
        break;
      }
      if (tokens_.is(TokenKind::kData)) {
        block.push_back(make(StatementKind::kText));
        block.back()->text = tokens_.take().text;
      } else if (tokens_.is(TokenKind::kVariableBegin)) {
        tokens_.take();
        block.push_back(make(StatementKind::kOutput));
        block.back()->expr = parse_tuple(tokens_);
        tokens_.expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        if (at_end_of(ends)) {
          tokens_.take();
          break;
        }
        tokens_.take();
        block.push_back(statement());
      }
    }
    --depth_;
    return block;
  }

  void end_block() { tokens_.expect(TokenKind::kBlockEnd, "'%}'"); }
  // body, then "endname %}".
  Block body_until(std::string_view end) {
    Block block = body({end});
    tokens_.take();
    end_block();
    return block;
  }

  StatementPtr statement() {
    const std::string name = tokens_.expect_name();
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "filter") return filter_statement();
    if (name == "with") return with_statement();
    if (name == "generation") {
      auto scope = make(StatementKind::kScope);
      end_block();
      scope->body = body_until("endgeneration");
      return scope;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) tokens_.fail("'" + name + "' outside a loop");
      auto jump = make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      end_block();
      return jump;
    }
    tokens_.fail("the tag '{% " + name +
                 " %}' is not supported; supported are if, for, set, macro, call, filter, with, "
                 "generation, break, continue, raw");
  }

  StatementPtr if_statement() {
    auto result = make(StatementKind::kIf);
    for (;;) {
      auto test = parse_tuple(tokens_);
      end_block();
      Block then = body({"elif", "else", "endif"});
      result->branches.emplace_back(std::move(test), std::move(then));
      const std::string end = tokens_.expect_name();
      if (end == "elif") continue;
      end_block();
      if (end == "else") result->otherwise = body_until("endif");
      return result;
    }
  }

  StatementPtr for_statement() {
    auto loop = make(StatementKind::kFor);
    loop->target = parse_target(tokens_, false);
    if (!tokens_.skip_name("in")) tokens_.fail("expected 'in', found " + tokens_.describe());
    loop->expr = parse_tuple(tokens_, false);
    if (tokens_.skip_name("if")) loop->test = parse_expression(tokens_);
    if (tokens_.is_name("recursive")) tokens_.fail("'recursive' loops are not supported");
    end_block();
    ++loops_;
    loop->body = body({"else", "endfor"});
    --loops_;
    const bool has_else = tokens_.expect_name() == "else";
    end_block();
    if (has_else) loop->otherwise = body_until("endfor");
    return loop;
  }

  StatementPtr set_statement() {
    auto set = make(StatementKind::kSet);
    set->target = parse_target(tokens_, true);
    if (tokens_.skip_operator("=")) {
      set->expr = parse_tuple(tokens_);
      end_block();
      return set;
    }
    set->kind = StatementKind::kSetBlock;
    if (tokens_.is_operator("|")) set->filter = parse_filters(tokens_, nullptr, true);
    end_block();
    set->body = body_until("endset");
    return set;
  }

  void parameters(Statement& statement) {
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      Parameter parameter{tokens_.expect_name(), nullptr};
      if (tokens_.skip_operator("=")) {
        parameter.fallback = parse_expression(tokens_);
      } else if (!statement.parameters.empty() && statement.parameters.back().fallback) {
        tokens_.fail("a parameter without default behind one with a default");
      }
      statement.parameters.push_back(std::move(parameter));
      if (!tokens_.skip_operator(",")) break;
    }
    tokens_.expect_operator(")");
  }

  // A macro's body is no part of the loop around it.
  Block function_body(std::string_view end) {
    const int outer = std::exchange(loops_, 0);
    Block block = body_until(end);
    loops_ = outer;
    return block;
  }

  StatementPtr macro_statement() {
    auto macro = make(StatementKind::kMacro);
    macro->text = tokens_.expect_name();
    parameters(*macro);
    end_block();
    macro->body = function_body("endmacro");
    return macro;
  }

  StatementPtr call_statement() {
    auto call = make(StatementKind::kCall);
    call->text = "caller";
    if (tokens_.is_operator("(")) parameters(*call);
    call->expr = parse_expression(tokens_);
    if (call->expr->kind != ExprKind::kCall) tokens_.fail("'{% call %}' needs a call");
    end_block();
    call->body = function_body("endcall");
    return call;
  }

  StatementPtr filter_statement() {
    auto filter = make(StatementKind::kFilter);
    filter->filter = parse_filters(tokens_, nullptr, false);
    end_block();
    filter->body = body_until("endfilter");
    return filter;
  }

  StatementPtr with_statement() {
    auto with = make(StatementKind::kWith);
    while (!tokens_.is(TokenKind::kBlockEnd)) {
      auto target = parse_target(tokens_, false);
      tokens_.expect_operator("=");
      with->assignments.emplace_back(std::move(target), parse_expression(tokens_));
      if (!tokens_.skip_operator(",")) break;
    }
    end_block();
    with->body = body_until("endwith");
    return with;
  }

  ExpressionTokens tokens_;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace refrain::jinja
