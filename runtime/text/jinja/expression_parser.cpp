#include <algorithm>

#include "runtime/text/jinja/token_stream.h"

namespace refrain::jinja {
namespace {

constexpr int kMaxNodes = 2000;  // of one expression: its tree may be a chain

}  // namespace

ExprPtr ExpressionParser::make(ExprKind kind) {
  if (++nodes_ > kMaxNodes) tokens_.fail("an expression is too long");
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = tokens_.line();
  return expr;
}

ExprPtr ExpressionParser::expression(bool with_condition) {
  if (depth_ == 0) nodes_ = 0;
  const ParseNesting nesting(depth_, tokens_);
  return with_condition ? condition() : logical_or();
}

bool ExpressionParser::tuple_ends() const {
  return tokens_.is(TokenKind::kVariableEnd) || tokens_.is(TokenKind::kBlockEnd) ||
         tokens_.is_operator(")") || tokens_.is_name("in") || tokens_.is_name("recursive") ||
         tokens_.is_operator("=");
}

ExprPtr ExpressionParser::tuple(bool with_condition) {
  auto list = make(ExprKind::kTuple);
  bool is_tuple = false;
  while (!tuple_ends()) {
    list->args.push_back(expression(with_condition));
    if (!tokens_.skip_operator(",")) break;
    is_tuple = true;
  }
  if (list->args.empty()) tokens_.fail("expected an expression, found " + tokens_.describe());
  return is_tuple ? std::move(list) : std::move(list->args.front());
}

ExprPtr ExpressionParser::assign_target(bool allow_attribute) {
  const auto one = [&]() -> ExprPtr {
    if (tokens_.skip_operator("(")) {
      auto inner = assign_target(false);
      tokens_.expect_operator(")");
      return inner;
    }
    auto name = make(ExprKind::kName);
    name->name = tokens_.expect_name();
    if (!allow_attribute || !tokens_.skip_operator(".")) return name;
    auto attribute = make(ExprKind::kGetAttr);
    attribute->name = tokens_.expect_name();
    attribute->target = std::move(name);
    return attribute;
  };
  auto first = one();
  if (!tokens_.is_operator(",")) return first;
  auto list = make(ExprKind::kTuple);
  list->args.push_back(std::move(first));
  while (tokens_.skip_operator(",") && !tuple_ends()) list->args.push_back(one());
  return list;
}

ExprPtr ExpressionParser::condition() {
  auto value = logical_or();
  while (tokens_.skip_name("if")) {
    auto expr = make(ExprKind::kCondition);
    expr->args.push_back(logical_or());
    expr->args.push_back(std::move(value));
    const ParseNesting nesting(depth_, tokens_);
    expr->args.push_back(tokens_.skip_name("else") ? condition() : nullptr);
    value = std::move(expr);
  }
  return value;
}

ExprPtr ExpressionParser::logical_or() {
  auto left = logical_and();
  while (tokens_.is_name("or")) {
    auto expr = make(ExprKind::kOr);
    tokens_.take();
    expr->args.push_back(std::move(left));
    expr->args.push_back(logical_and());
    left = std::move(expr);
  }
  return left;
}

ExprPtr ExpressionParser::logical_and() {
  auto left = logical_not();
  while (tokens_.is_name("and")) {
    auto expr = make(ExprKind::kAnd);
    tokens_.take();
    expr->args.push_back(std::move(left));
    expr->args.push_back(logical_not());
    left = std::move(expr);
  }
  return left;
}

ExprPtr ExpressionParser::logical_not() {
  if (!tokens_.is_name("not")) return compare();
  const ParseNesting nesting(depth_, tokens_);
  auto expr = make(ExprKind::kNot);
  tokens_.take();
  expr->target = logical_not();
  return expr;
}

ExprPtr ExpressionParser::compare() {
  static const std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  auto left = sum();
  auto expr = make(ExprKind::kCompare);
  for (;;) {
    bool found = false;
    for (const auto& [text, op] : kOperators) {
      if (!tokens_.skip_operator(text)) continue;
      expr->ops.push_back(op);
      found = true;
      break;
    }
    if (!found && tokens_.skip_name("in")) {
      expr->ops.push_back(Operator::kIn);
    } else if (!found && tokens_.is_name("not") && tokens_.next().kind == TokenKind::kName &&
               tokens_.next().text == "in") {
      tokens_.take();
      tokens_.take();
      expr->ops.push_back(Operator::kNotIn);
    } else if (!found) {
      break;
    }
    expr->args.push_back(sum());
  }
  if (expr->ops.empty()) return left;
  expr->target = std::move(left);
  return expr;
}

ExprPtr ExpressionParser::sum() {
  auto left = concat();
  while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
    auto expr = make(ExprKind::kBinary);
    expr->ops.push_back(tokens_.take().text == "+" ? Operator::kAdd : Operator::kSub);
    expr->args.push_back(std::move(left));
    expr->args.push_back(concat());
    left = std::move(expr);
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  auto first = product();
  if (!tokens_.is_operator("~")) return first;
  auto expr = make(ExprKind::kConcat);
  expr->args.push_back(std::move(first));
  while (tokens_.skip_operator("~")) expr->args.push_back(product());
  return expr;
}

ExprPtr ExpressionParser::product() {
  static const std::pair<std::string_view, Operator> kOperators[] = {{"*", Operator::kMul},
                                                                     {"/", Operator::kDiv},
                                                                     {"//", Operator::kFloorDiv},
                                                                     {"%", Operator::kMod}};
  auto left = power();
  for (;;) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& op) { return tokens_.is_operator(op.first); });
    if (found == std::end(kOperators)) return left;
    auto expr = make(ExprKind::kBinary);
    tokens_.take();
    expr->ops.push_back(found->second);
    expr->args.push_back(std::move(left));
    expr->args.push_back(power());
    left = std::move(expr);
  }
}

ExprPtr ExpressionParser::power() {
  auto left = unary(true);
  while (tokens_.is_operator("**")) {
    auto expr = make(ExprKind::kBinary);
    tokens_.take();
    expr->ops.push_back(Operator::kPow);
    expr->args.push_back(std::move(left));
    expr->args.push_back(unary(true));
    left = std::move(expr);
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  ExprPtr expr;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const ParseNesting nesting(depth_, tokens_);
    expr = make(tokens_.is_operator("-") ? ExprKind::kNegative : ExprKind::kPositive);
    tokens_.take();
    expr->target = unary(false);
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filter ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr expr) {
  for (int count = 0;; ++count) {
    if (count > ParseNesting::kMax) tokens_.fail("a chain of filters is too long");
    if (tokens_.is_operator("|")) {
      expr = filter_chain(std::move(expr), false);
    } else if (tokens_.is_name("is")) {
      expr = test(std::move(expr));
    } else if (tokens_.is_operator("(")) {
      expr = call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::filter_chain(ExprPtr input, bool inline_start) {
  int count = 0;
  while (inline_start || tokens_.is_operator("|")) {
    if (++count > ParseNesting::kMax) tokens_.fail("a chain of filters is too long");
    if (!inline_start) tokens_.take();
    inline_start = false;
    auto filter = make(ExprKind::kFilter);
    filter->name = tokens_.expect_name();
    filter->target = std::move(input);
    if (tokens_.is_operator("(")) call_arguments(*filter);
    input = std::move(filter);
  }
  return input;
}

ExprPtr ExpressionParser::test(ExprPtr target) {
  tokens_.take();  // is
  const bool negated = tokens_.skip_name("not");
  auto expr = make(ExprKind::kTest);
  expr->name = tokens_.expect_name();
  expr->target = std::move(target);
  const bool argument = tokens_.is(TokenKind::kName) || tokens_.is(TokenKind::kString) ||
                        tokens_.is(TokenKind::kInteger) || tokens_.is(TokenKind::kFloat) ||
                        tokens_.is_operator("[") || tokens_.is_operator("{");
  const bool keyword = tokens_.is_name("else") || tokens_.is_name("or") || tokens_.is_name("and") ||
                       tokens_.is_name("is") || tokens_.is_name("if") || tokens_.is_name("not") ||
                       tokens_.is_name("in");
  if (tokens_.is_operator("(")) {
    call_arguments(*expr);
  } else if (argument && !keyword) {
    expr->args.push_back(postfix(primary()));
  } else if (tokens_.is_name("is")) {
    tokens_.fail("tests cannot be chained with 'is'");
  }
  if (!negated) return expr;
  auto inverse = make(ExprKind::kNot);
  inverse->target = std::move(expr);
  return inverse;
}

ExprPtr ExpressionParser::call(ExprPtr target) {
  auto expr = make(ExprKind::kCall);
  expr->target = std::move(target);
  call_arguments(*expr);
  return expr;
}

void ExpressionParser::call_arguments(Expr& call) {
  tokens_.expect_operator("(");
  const ParseNesting nesting(depth_, tokens_);
  while (!tokens_.is_operator(")")) {
    if (tokens_.skip_operator("*")) {
      if (call.star) tokens_.fail("more than one '*' argument");
      call.star = expression();
    } else if (tokens_.skip_operator("**")) {
      if (call.double_star) tokens_.fail("more than one '**' argument");
      call.double_star = expression();
    } else if (tokens_.is(TokenKind::kName) && tokens_.next().kind == TokenKind::kOperator &&
               tokens_.next().text == "=") {
      std::string name = tokens_.take().text;
      tokens_.take();
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty() || call.double_star)
        tokens_.fail("a positional argument behind a named one");
      call.args.push_back(expression());
    }
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator(")");
}

}  // namespace refrain::jinja
