#include "runtime/text/jinja/expression_parser.h"

#include <cstdint>
#include <optional>

#include "runtime/text/jinja/operand_parser.h"

namespace refrain::jinja {
namespace {

// From loosest to tightest binding.
enum class Level : uint8_t {
  kOr,
  kAnd,
  kNot,
  kComparison,
  kSum,
  kConcat,
  kProduct,
  kPower,
  kOperand,
};

// Operators of two operands whose left one may be such an expression again.
struct BinaryOperator {
  std::string_view token;
  Level level;
  ExprKind kind;
  std::optional<Operator> op = std::nullopt;
};
constexpr BinaryOperator kBinaryOperators[] = {
    {"or", Level::kOr, ExprKind::kOr},
    {"and", Level::kAnd, ExprKind::kAnd},
    {"+", Level::kSum, ExprKind::kBinary, Operator::kAdd},
    {"-", Level::kSum, ExprKind::kBinary, Operator::kSub},
    {"*", Level::kProduct, ExprKind::kBinary, Operator::kMul},
    {"/", Level::kProduct, ExprKind::kBinary, Operator::kDiv},
    {"//", Level::kProduct, ExprKind::kBinary, Operator::kFloorDiv},
    {"%", Level::kProduct, ExprKind::kBinary, Operator::kMod},
    {"**", Level::kPower, ExprKind::kBinary, Operator::kPow},
};
constexpr std::pair<std::string_view, Operator> kComparisons[] = {
    {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
    {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};

ExprPtr parse_level(ExpressionTokens& tokens, Level level);

ExprPtr parse_tighter(ExpressionTokens& tokens, Level level) {
  return parse_level(tokens, static_cast<Level>(static_cast<uint8_t>(level) + 1));
}

const BinaryOperator* operator_at(const TokenStream& tokens, Level level) {
  for (const BinaryOperator& known : kBinaryOperators)
    if (known.level == level && (tokens.is_operator(known.token) || tokens.is_name(known.token)))
      return &known;
  return nullptr;
}

ExprPtr parse_binary(ExpressionTokens& tokens, Level level) {
  auto left = parse_tighter(tokens, level);
  while (const BinaryOperator* found = operator_at(tokens, level)) {
    auto expr = tokens.make(found->kind);
    tokens.take();
    if (found->op) expr->ops.push_back(*found->op);
    expr->args.push_back(std::move(left));
    expr->args.push_back(parse_tighter(tokens, level));
    left = std::move(expr);
  }
  return left;
}

ExprPtr parse_not(ExpressionTokens& tokens) {
  if (!tokens.is_name("not")) return parse_tighter(tokens, Level::kNot);
  const ExpressionTokens::Nesting nesting(tokens);
  auto expr = tokens.make(ExprKind::kNot);
  tokens.take();
  expr->target = parse_not(tokens);
  return expr;
}

std::optional<Operator> take_comparison(TokenStream& tokens) {
  for (const auto& [text, op] : kComparisons)
    if (tokens.skip_operator(text)) return op;
  if (tokens.skip_name("in")) return Operator::kIn;
  if (!tokens.is_name("not") || tokens.next().kind != TokenKind::kName ||
      tokens.next().text != "in")
    return std::nullopt;
  tokens.take();
  tokens.take();
  return Operator::kNotIn;
}

// a < b < c is one expression.
ExprPtr parse_comparison(ExpressionTokens& tokens) {
  auto first = parse_tighter(tokens, Level::kComparison);
  auto expr = tokens.make(ExprKind::kCompare);
  while (const auto op = take_comparison(tokens)) {
    expr->ops.push_back(*op);
    expr->args.push_back(parse_tighter(tokens, Level::kComparison));
  }
  if (expr->ops.empty()) return first;
  expr->target = std::move(first);
  return expr;
}

// So is a ~ b ~ c.
ExprPtr parse_concat(ExpressionTokens& tokens) {
  auto first = parse_tighter(tokens, Level::kConcat);
  if (!tokens.is_operator("~")) return first;
  auto expr = tokens.make(ExprKind::kConcat);
  expr->args.push_back(std::move(first));
  while (tokens.skip_operator("~")) expr->args.push_back(parse_tighter(tokens, Level::kConcat));
  return expr;
}

ExprPtr parse_level(ExpressionTokens& tokens, Level level) {
  switch (level) {
    case Level::kNot:
      return parse_not(tokens);
    case Level::kComparison:
      return parse_comparison(tokens);
    case Level::kConcat:
      return parse_concat(tokens);
    case Level::kOperand:
      return parse_operand(tokens);
    default:
      return parse_binary(tokens, level);
  }
}

// value if test else value
ExprPtr parse_condition(ExpressionTokens& tokens) {
  auto value = parse_level(tokens, Level::kOr);
  while (tokens.skip_name("if")) {
    auto expr = tokens.make(ExprKind::kCondition);
    expr->args.push_back(parse_level(tokens, Level::kOr));
    expr->args.push_back(std::move(value));
    const ExpressionTokens::Nesting nesting(tokens);
    expr->args.push_back(tokens.skip_name("else") ? parse_condition(tokens) : nullptr);
    value = std::move(expr);
  }
  return value;
}

bool tuple_ends(const TokenStream& tokens) {
  return tokens.is(TokenKind::kVariableEnd) || tokens.is(TokenKind::kBlockEnd) ||
         tokens.is_operator(")") || tokens.is_name("in") || tokens.is_name("recursive") ||
         tokens.is_operator("=");
}

ExprPtr parse_one_target(ExpressionTokens& tokens, bool allow_attribute) {
  if (tokens.skip_operator("(")) {
    auto inner = parse_target(tokens, false);
    tokens.expect_operator(")");
    return inner;
  }
  auto name = tokens.make(ExprKind::kName);
  name->name = tokens.expect_name();
  if (!allow_attribute || !tokens.skip_operator(".")) return name;
  auto attribute = tokens.make(ExprKind::kGetAttr);
  attribute->name = tokens.expect_name();
  attribute->target = std::move(name);
  return attribute;
}

}  // namespace

ExprPtr parse_expression(ExpressionTokens& tokens, bool with_condition) {
  tokens.begin();
  const ExpressionTokens::Nesting nesting(tokens);
  return with_condition ? parse_condition(tokens) : parse_level(tokens, Level::kOr);
}

ExprPtr parse_tuple(ExpressionTokens& tokens, bool with_condition) {
  auto list = tokens.make(ExprKind::kTuple);
  bool is_tuple = false;
  while (!tuple_ends(tokens)) {
    list->args.push_back(parse_expression(tokens, with_condition));
    if (!tokens.skip_operator(",")) break;
    is_tuple = true;
  }
  if (list->args.empty()) tokens.fail("expected an expression, found " + tokens.describe());
  return is_tuple ? std::move(list) : std::move(list->args.front());
}

ExprPtr parse_target(ExpressionTokens& tokens, bool allow_attribute) {
  auto first = parse_one_target(tokens, allow_attribute);
  if (!tokens.is_operator(",")) return first;
  auto list = tokens.make(ExprKind::kTuple);
  list->args.push_back(std::move(first));
  while (tokens.skip_operator(",") && !tuple_ends(tokens))
    list->args.push_back(parse_one_target(tokens, allow_attribute));
  return list;
}

}  // namespace refrain::jinja
