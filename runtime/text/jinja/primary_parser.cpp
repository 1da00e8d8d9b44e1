// Literals, names, and what hangs on them: attributes, items, slices, calls.
#include <charconv>

#include "runtime/text/jinja/token_stream.h"

namespace refrain::jinja {

ExprPtr ExpressionParser::number() {
  auto expr = make(ExprKind::kConst);
  const bool is_float = tokens_.is(TokenKind::kFloat);
  const std::string text = tokens_.take().text;
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
    tokens_.fail("the number " + text + " is out of range");
  return expr;
}

ExprPtr ExpressionParser::primary() {
  if (tokens_.is(TokenKind::kInteger) || tokens_.is(TokenKind::kFloat)) return number();
  if (tokens_.is_operator("(")) return parenthesized();
  if (tokens_.is_operator("[")) return list_literal();
  if (tokens_.is_operator("{")) return dict_literal();
  auto expr = make(ExprKind::kConst);
  if (tokens_.is(TokenKind::kString)) {
    std::string text;
    while (tokens_.is(TokenKind::kString)) text += tokens_.take().text;  // "a" "b" is "ab"
    expr->value = std::move(text);
    return expr;
  }
  if (!tokens_.is(TokenKind::kName))
    tokens_.fail("expected an expression, found " + tokens_.describe());
  const std::string name = tokens_.current().text;
  tokens_.take();
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

ExprPtr ExpressionParser::parenthesized() {
  tokens_.expect_operator("(");
  if (tokens_.is_operator(")")) {
    auto empty = make(ExprKind::kTuple);
    tokens_.take();
    return empty;
  }
  const ParseNesting nesting(depth_, tokens_);
  auto inner = tuple();
  tokens_.expect_operator(")");
  return inner;
}

ExprPtr ExpressionParser::list_literal() {
  auto list = make(ExprKind::kList);
  tokens_.expect_operator("[");
  while (!tokens_.is_operator("]")) {
    list->args.push_back(expression());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("]");
  return list;
}

ExprPtr ExpressionParser::dict_literal() {
  auto dict = make(ExprKind::kDict);
  tokens_.expect_operator("{");
  while (!tokens_.is_operator("}")) {
    dict->args.push_back(expression());
    tokens_.expect_operator(":");
    dict->args.push_back(expression());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("}");
  return dict;
}

ExprPtr ExpressionParser::postfix(ExprPtr expr) {
  for (int count = 0;; ++count) {
    if (count > ParseNesting::kMax) tokens_.fail("a chain of '.', '[' and '(' is too long");
    if (tokens_.is_operator(".") || tokens_.is_operator("[")) {
      expr = subscript(std::move(expr));
    } else if (tokens_.is_operator("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr target) {
  if (tokens_.skip_operator(".")) {
    auto expr = make(ExprKind::kGetAttr);
    if (tokens_.is(TokenKind::kInteger)) {
      expr->kind = ExprKind::kGetItem;
      expr->args.push_back(number());
    } else {
      expr->name = tokens_.expect_name();
    }
    expr->target = std::move(target);
    return expr;
  }
  tokens_.expect_operator("[");
  auto expr = subscript_item(std::move(target));
  tokens_.expect_operator("]");
  return expr;
}

ExprPtr ExpressionParser::subscript_item(ExprPtr target) {
  auto expr = make(ExprKind::kSlice);
  expr->target = std::move(target);
  const auto part = [&]() -> ExprPtr {
    return tokens_.is_operator(":") || tokens_.is_operator("]") ? nullptr : expression();
  };
  expr->args.push_back(part());
  if (!tokens_.is_operator(":")) {
    if (expr->args.front() == nullptr) tokens_.fail("an empty subscript");
    if (tokens_.is_operator(",")) tokens_.fail("a subscript of several values is not supported");
    expr->kind = ExprKind::kGetItem;
    return expr;
  }
  while (expr->args.size() < 3 && tokens_.skip_operator(":")) expr->args.push_back(part());
  expr->args.resize(3);
  return expr;
}

}  // namespace refrain::jinja
