#include "runtime/text/jinja/evaluator.h"

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/operators.h"

namespace refrain::jinja {

Value Evaluator::look_up(const std::string& name, const ScopePtr& scope) {
  if (const Value* found = scope->look_up(name)) return *found;
  if (const Value* found = variables_.find(std::string_view(name))) return *found;
  if (auto function = find_global(name)) return *function;
  return Value::undefined("'" + name + "' is undefined");
}

Value Evaluator::evaluate(const Expr& expr, const ScopePtr& scope) {
  const Budget::Nesting nesting(budget_);
  budget_.charge(1);
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return look_up(expr.name, scope);
    case ExprKind::kList:
      return Value::list(all(expr.args, scope));
    case ExprKind::kTuple:
      return Value::tuple(all(expr.args, scope));
    case ExprKind::kDict:
      return dict(expr, scope);
    case ExprKind::kGetAttr:
      return get_attribute(evaluate(*expr.target, scope), expr.name);
    case ExprKind::kGetItem: {
      const Value object = evaluate(*expr.target, scope);
      return get_item(budget_, object, evaluate(*expr.args[0], scope));
    }
    case ExprKind::kSlice:
      return slice_of(expr, scope);
    case ExprKind::kCall:
      return call_of(expr, scope);
    case ExprKind::kFilter:
      return filter(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value input = evaluate(*expr.target, scope);
      Arguments given = arguments(expr, scope);
      return apply_test(expr.name, input, given);
    }
    case ExprKind::kNot:
      return !evaluate(*expr.target, scope).truthy();
    case ExprKind::kNegative:
      return negative(evaluate(*expr.target, scope));
    case ExprKind::kPositive:
      return negative(negative(evaluate(*expr.target, scope)));
    case ExprKind::kBinary: {
      const Value left = evaluate(*expr.args[0], scope);
      return arithmetic(budget_, expr.ops[0], left, evaluate(*expr.args[1], scope));
    }
    case ExprKind::kCompare:
      return comparison(expr, scope);
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.args[0], scope);
      return left.truthy() ? evaluate(*expr.args[1], scope) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.args[0], scope);
      return left.truthy() ? left : evaluate(*expr.args[1], scope);
    }
    case ExprKind::kConcat:
      return concatenation(expr, scope);
    case ExprKind::kCondition:
      if (evaluate(*expr.args[0], scope).truthy()) return evaluate(*expr.args[1], scope);
      if (expr.args[2]) return evaluate(*expr.args[2], scope);
      return Value::undefined("the inline if-expression evaluated to false and has no else");
  }
  return {};
}

std::vector<Value> Evaluator::all(const std::vector<ExprPtr>& exprs, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const auto& expr : exprs) values.push_back(evaluate(*expr, scope));
  return values;
}

Value Evaluator::dict(const Expr& expr, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    Value key = evaluate(*expr.args[i], scope);
    dict->set(std::move(key), evaluate(*expr.args[i + 1], scope));
  }
  return dict;
}

Value Evaluator::slice_of(const Expr& expr, const ScopePtr& scope) {
  const Value object = evaluate(*expr.target, scope);
  const auto part = [&](size_t i) {
    return expr.args[i] ? evaluate(*expr.args[i], scope) : Value();
  };
  const Value start = part(0);
  const Value stop = part(1);
  return slice(budget_, object, start, stop, part(2));
}

bool Evaluator::comparison(const Expr& expr, const ScopePtr& scope) {
  Value left = evaluate(*expr.target, scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.args[i], scope);
    budget_.charge(1);
    if (!compare(expr.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

std::string Evaluator::concatenation(const Expr& expr, const ScopePtr& scope) {
  std::string text;
  for (const auto& part : expr.args) {
    text += to_text(evaluate(*part, scope));
    budget_.charge_text(text.size());
  }
  return text;
}

Arguments Evaluator::arguments(const Expr& expr, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional = all(expr.args, scope);
  for (const auto& [name, value] : expr.named)
    arguments.named.emplace_back(name, evaluate(*value, scope));
  if (expr.star)
    for (Value& item : iterate(budget_, evaluate(*expr.star, scope)))
      arguments.positional.push_back(std::move(item));
  if (expr.double_star) {
    const Value more = evaluate(*expr.double_star, scope);
    if (more.as_dict() == nullptr) throw TemplateError("the argument after ** must be a mapping");
    for (const auto& [key, value] : more.as_dict()->entries)
      arguments.named.emplace_back(to_text(key), value);
  }
  return arguments;
}

Value Evaluator::call_of(const Expr& expr, const ScopePtr& scope) {
  const Value function = evaluate(*expr.target, scope);
  Arguments given = arguments(expr, scope);
  return call(rendering_, function, given);
}

Value Evaluator::filter(const Expr& expr, const ScopePtr& scope, const Value* input) {
  const Budget::Nesting nesting(budget_);
  Value value;
  if (expr.target == nullptr) {
    value = *input;
  } else if (expr.target->kind == ExprKind::kFilter) {
    value = filter(*expr.target, scope, input);
  } else {
    value = evaluate(*expr.target, scope);
  }
  Arguments given = arguments(expr, scope);
  budget_.charge(1);
  return apply_filter(rendering_, expr.name, value, given);
}

}  // namespace refrain::jinja
