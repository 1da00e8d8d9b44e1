#include "runtime/text/jinja/operand_parser.h"

#include <charconv>

#include "runtime/text/jinja/expression_parser.h"

namespace refrain::jinja {
namespace {

ExprPtr parse_number(ExpressionTokens& tokens) {
  auto expr = tokens.make(ExprKind::kConst);
  const bool is_float = tokens.is(TokenKind::kFloat);
  const std::string text = tokens.take().text;
  const bool hex = text.starts_with("0x");
  const char* begin = text.data() + (hex ? 2 : 0);
  const char* end = text.data() + text.size();
  std::from_chars_result result{};
  if (is_float) {
    double value = 0;
    result = std::from_chars(begin, end, value);
    expr->value = value;
  } else {
    int64_t value = 0;
    result = std::from_chars(begin, end, value, hex ? 16 : 10);
    expr->value = value;
  }
  if (result.ec != std::errc() || result.ptr != end)
    tokens.fail("the number " + text + " is out of range");
  return expr;
}

ExprPtr parse_parentheses(ExpressionTokens& tokens) {
  tokens.expect_operator("(");
  if (tokens.is_operator(")")) {
    auto empty = tokens.make(ExprKind::kTuple);
    tokens.take();
    return empty;
  }
  const ExpressionTokens::Nesting nesting(tokens);
  auto inner = parse_tuple(tokens);
  tokens.expect_operator(")");
  return inner;
}

ExprPtr parse_list(ExpressionTokens& tokens) {
  auto list = tokens.make(ExprKind::kList);
  tokens.expect_operator("[");
  while (!tokens.is_operator("]")) {
    list->args.push_back(parse_expression(tokens));
    if (!tokens.skip_operator(",")) break;
  }
  tokens.expect_operator("]");
  return list;
}

ExprPtr parse_dict(ExpressionTokens& tokens) {
  auto dict = tokens.make(ExprKind::kDict);
  tokens.expect_operator("{");
  while (!tokens.is_operator("}")) {
    dict->args.push_back(parse_expression(tokens));
    tokens.expect_operator(":");
    dict->args.push_back(parse_expression(tokens));
    if (!tokens.skip_operator(",")) break;
  }
  tokens.expect_operator("}");
  return dict;
}

ExprPtr parse_primary(ExpressionTokens& tokens) {
  if (tokens.is(TokenKind::kInteger) || tokens.is(TokenKind::kFloat)) return parse_number(tokens);
  if (tokens.is_operator("(")) return parse_parentheses(tokens);
  if (tokens.is_operator("[")) return parse_list(tokens);
  if (tokens.is_operator("{")) return parse_dict(tokens);
  auto expr = tokens.make(ExprKind::kConst);
  if (tokens.is(TokenKind::kString)) {
    std::string text;
    while (tokens.is(TokenKind::kString)) text += tokens.take().text;  // "a" "b" is "ab"
    expr->value = std::move(text);
    return expr;
  }
  if (!tokens.is(TokenKind::kName))
    tokens.fail("expected an expression, found " + tokens.describe());
  const std::string name = tokens.current().text;
  tokens.take();
  if (name == "true" || name == "True") {
    expr->value = true;
  } else if (name == "false" || name == "False") {
    expr->value = false;
  } else if (name != "none" && name != "None") {
    expr->kind = ExprKind::kName;
    expr->name = name;
  }
  return expr;
}

void parse_arguments(ExpressionTokens& tokens, Expr& call) {
  tokens.expect_operator("(");
  const ExpressionTokens::Nesting nesting(tokens);
  while (!tokens.is_operator(")")) {
    if (tokens.skip_operator("*")) {
      if (call.star) tokens.fail("more than one '*' argument");
      call.star = parse_expression(tokens);
    } else if (tokens.skip_operator("**")) {
      if (call.double_star) tokens.fail("more than one '**' argument");
      call.double_star = parse_expression(tokens);
    } else if (tokens.is(TokenKind::kName) && tokens.next().kind == TokenKind::kOperator &&
               tokens.next().text == "=") {
      std::string name = tokens.take().text;
      tokens.take();
      call.named.emplace_back(std::move(name), parse_expression(tokens));
    } else {
      if (!call.named.empty() || call.double_star)
        tokens.fail("a positional argument behind a named one");
      call.args.push_back(parse_expression(tokens));
    }
    if (!tokens.skip_operator(",")) break;
  }
  tokens.expect_operator(")");
}

ExprPtr parse_call(ExpressionTokens& tokens, ExprPtr target) {
  auto expr = tokens.make(ExprKind::kCall);
  expr->target = std::move(target);
  parse_arguments(tokens, *expr);
  return expr;
}

ExprPtr parse_subscript_item(ExpressionTokens& tokens, ExprPtr target) {
  auto expr = tokens.make(ExprKind::kSlice);
  expr->target = std::move(target);
  const auto part = [&]() -> ExprPtr {
    return tokens.is_operator(":") || tokens.is_operator("]") ? nullptr : parse_expression(tokens);
  };
  expr->args.push_back(part());
  if (!tokens.is_operator(":")) {
    if (expr->args.front() == nullptr) tokens.fail("an empty subscript");
    if (tokens.is_operator(",")) tokens.fail("a subscript of several values is not supported");
    expr->kind = ExprKind::kGetItem;
    return expr;
  }
  while (expr->args.size() < 3 && tokens.skip_operator(":")) expr->args.push_back(part());
  expr->args.resize(3);
  return expr;
}

ExprPtr parse_subscript(ExpressionTokens& tokens, ExprPtr target) {
  if (tokens.skip_operator(".")) {
    auto expr = tokens.make(ExprKind::kGetAttr);
    if (tokens.is(TokenKind::kInteger)) {
      expr->kind = ExprKind::kGetItem;
      expr->args.push_back(parse_number(tokens));
    } else {
      expr->name = tokens.expect_name();
    }
    expr->target = std::move(target);
    return expr;
  }
  tokens.expect_operator("[");
  auto expr = parse_subscript_item(tokens, std::move(target));
  tokens.expect_operator("]");
  return expr;
}

ExprPtr parse_postfix(ExpressionTokens& tokens, ExprPtr expr) {
  for (int count = 0;; ++count) {
    tokens.check_chain(count, "'.', '[' and '('");
    if (tokens.is_operator(".") || tokens.is_operator("[")) {
      expr = parse_subscript(tokens, std::move(expr));
    } else if (tokens.is_operator("(")) {
      expr = parse_call(tokens, std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr parse_signed(ExpressionTokens& tokens) {
  ExprPtr expr;
  if (tokens.is_operator("-") || tokens.is_operator("+")) {
    const ExpressionTokens::Nesting nesting(tokens);
    expr = tokens.make(tokens.is_operator("-") ? ExprKind::kNegative : ExprKind::kPositive);
    tokens.take();
    expr->target = parse_signed(tokens);
  } else {
    expr = parse_primary(tokens);
  }
  return parse_postfix(tokens, std::move(expr));
}

ExprPtr parse_test(ExpressionTokens& tokens, ExprPtr target) {
  tokens.take();  // is
  const bool negated = tokens.skip_name("not");
  auto expr = tokens.make(ExprKind::kTest);
  expr->name = tokens.expect_name();
  expr->target = std::move(target);
  const bool argument = tokens.is(TokenKind::kName) || tokens.is(TokenKind::kString) ||
                        tokens.is(TokenKind::kInteger) || tokens.is(TokenKind::kFloat) ||
                        tokens.is_operator("[") || tokens.is_operator("{");
  const bool keyword = tokens.is_name("else") || tokens.is_name("or") || tokens.is_name("and") ||
                       tokens.is_name("is") || tokens.is_name("if") || tokens.is_name("not") ||
                       tokens.is_name("in");
  if (tokens.is_operator("(")) {
    parse_arguments(tokens, *expr);
  } else if (argument && !keyword) {
    expr->args.push_back(parse_postfix(tokens, parse_primary(tokens)));
  } else if (tokens.is_name("is")) {
    tokens.fail("tests cannot be chained with 'is'");
  }
  if (!negated) return expr;
  auto inverse = tokens.make(ExprKind::kNot);
  inverse->target = std::move(expr);
  return inverse;
}

}  // namespace

ExprPtr parse_filters(ExpressionTokens& tokens, ExprPtr input, bool with_bar) {
  int count = 0;
  while (!with_bar || tokens.is_operator("|")) {
    tokens.check_chain(++count, "filters");
    if (with_bar) tokens.take();
    with_bar = true;
    auto filter = tokens.make(ExprKind::kFilter);
    filter->name = tokens.expect_name();
    filter->target = std::move(input);
    if (tokens.is_operator("(")) parse_arguments(tokens, *filter);
    input = std::move(filter);
  }
  return input;
}

ExprPtr parse_operand(ExpressionTokens& tokens) {
  auto expr = parse_signed(tokens);
  for (int count = 0;; ++count) {
    tokens.check_chain(count, "filters");
    if (tokens.is_operator("|")) {
      expr = parse_filters(tokens, std::move(expr), true);
    } else if (tokens.is_name("is")) {
      expr = parse_test(tokens, std::move(expr));
    } else if (tokens.is_operator("(")) {
      expr = parse_call(tokens, std::move(expr));
    } else {
      return expr;
    }
  }
}

}  // namespace refrain::jinja
