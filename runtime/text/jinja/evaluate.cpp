// Expressions.
#include <fmt/format.h>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/interpreter.h"

namespace refrain::jinja {
Value Interpreter::lookup(const std::string& name, const ScopePtr& scope) {
  for (Scope* at = scope.get(); at != nullptr; at = at->parent.get())
    if (const Value* found = at->find(name)) return *found;
  if (const Value* found = variables_->as_dict()->find(std::string_view(name))) return *found;
  if (auto function = find_global(name)) return *function;
  return Value::undefined("'" + name + "' is undefined");
}

Value Interpreter::evaluate(const Expr& expr, const ScopePtr& scope) {
  const Nesting nesting(depth_);
  charge(1);
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return lookup(expr.name, scope);
    case ExprKind::kList:
      return Value::list(evaluate_all(expr.args, scope));
    case ExprKind::kTuple:
      return Value::tuple(evaluate_all(expr.args, scope));
    case ExprKind::kDict:
      return evaluate_dict(expr, scope);
    case ExprKind::kGetAttr:
      return get_attribute(evaluate(*expr.target, scope), expr.name);
    case ExprKind::kGetItem: {
      const Value object = evaluate(*expr.target, scope);
      return get_item(object, evaluate(*expr.args[0], scope));
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope);
    case ExprKind::kFilter:
      return evaluate_filters(expr, scope, nullptr);
    case ExprKind::kTest: {
      const Value input = evaluate(*expr.target, scope);
      Arguments arguments = evaluate_arguments(expr, scope);
      return apply_test(expr.name, input, arguments);
    }
    case ExprKind::kNot:
      return !evaluate(*expr.target, scope).truthy();
    case ExprKind::kNegative:
      return negative(evaluate(*expr.target, scope));
    case ExprKind::kPositive:
      return negative(negative(evaluate(*expr.target, scope)));
    case ExprKind::kBinary: {
      const Value left = evaluate(*expr.args[0], scope);
      return arithmetic(*this, expr.ops[0], left, evaluate(*expr.args[1], scope));
    }
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.args[0], scope);
      return left.truthy() ? evaluate(*expr.args[1], scope) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.args[0], scope);
      return left.truthy() ? left : evaluate(*expr.args[1], scope);
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr, scope);
    case ExprKind::kCondition:
      if (evaluate(*expr.args[0], scope).truthy()) return evaluate(*expr.args[1], scope);
      if (expr.args[2]) return evaluate(*expr.args[2], scope);
      return Value::undefined("the inline if-expression evaluated to false and has no else");
  }
  return {};
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs,
                                             const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const auto& expr : exprs) values.push_back(evaluate(*expr, scope));
  return values;
}

Value Interpreter::evaluate_dict(const Expr& expr, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    Value key = evaluate(*expr.args[i], scope);
    dict->set(std::move(key), evaluate(*expr.args[i + 1], scope));
  }
  return dict;
}

Value Interpreter::evaluate_slice(const Expr& expr, const ScopePtr& scope) {
  const Value object = evaluate(*expr.target, scope);
  const auto part = [&](size_t i) {
    return expr.args[i] ? evaluate(*expr.args[i], scope) : Value();
  };
  const Value start = part(0);
  const Value stop = part(1);
  return slice(*this, object, start, stop, part(2));
}

Value Interpreter::evaluate_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = evaluate(*expr.target, scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.args[i], scope);
    charge(1);
    bool holds = false;
    switch (expr.ops[i]) {
      case Operator::kEqual:
        holds = equal(left, right);
        break;
      case Operator::kNotEqual:
        holds = !equal(left, right);
        break;
      case Operator::kLess:
        holds = less(left, right);
        break;
      case Operator::kLessEqual:
        holds = !less(right, left);
        break;
      case Operator::kGreater:
        holds = less(right, left);
        break;
      case Operator::kGreaterEqual:
        holds = !less(left, right);
        break;
      case Operator::kIn:
        holds = contains(right, left);
        break;
      default:
        holds = !contains(right, left);
        break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_concat(const Expr& expr, const ScopePtr& scope) {
  std::string text;
  for (const auto& part : expr.args) {
    text += to_text(evaluate(*part, scope));
    charge_text(text.size());
  }
  return text;
}

Arguments Interpreter::evaluate_arguments(const Expr& expr, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional = evaluate_all(expr.args, scope);
  for (const auto& [name, value] : expr.named)
    arguments.named.emplace_back(name, evaluate(*value, scope));
  if (expr.star)
    for (Value& item : iterate(evaluate(*expr.star, scope)))
      arguments.positional.push_back(std::move(item));
  if (expr.double_star) {
    const Value more = evaluate(*expr.double_star, scope);
    if (more.as_dict() == nullptr) throw TemplateError("the argument after ** must be a mapping");
    for (const auto& [key, value] : more.as_dict()->entries)
      arguments.named.emplace_back(to_text(key), value);
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expr& expr, const ScopePtr& scope) {
  const Value function = evaluate(*expr.target, scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  return call(function, arguments);
}

Value Interpreter::call(const Value& function, Arguments& arguments) {
  if (function.is_undefined()) throw TemplateError(function.why_undefined());
  if (function.as_function() == nullptr)
    throw TemplateError(std::string("'") + function.type_name() + "' object is not callable");
  const auto keep = function.function();
  return keep->call(*this, arguments);
}

// input: of the innermost filter of a filter block's chain, which has no target.
Value Interpreter::evaluate_filters(const Expr& expr, const ScopePtr& scope, const Value* input) {
  const Nesting nesting(depth_);
  Value value;
  if (expr.target == nullptr) {
    value = *input;
  } else if (expr.target->kind == ExprKind::kFilter) {
    value = evaluate_filters(*expr.target, scope, input);
  } else {
    value = evaluate(*expr.target, scope);
  }
  Arguments arguments = evaluate_arguments(expr, scope);
  charge(1);
  return apply_filter(expr.name, value, arguments);
}

Value Interpreter::make_namespace(Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  if (arguments.positional.size() > 1)
    throw TemplateError("namespace takes at most one positional argument");
  for (const Value& base : arguments.positional) {
    if (base.as_dict() == nullptr) throw TemplateError("namespace takes a mapping");
    for (const auto& [key, value] : base.as_dict()->entries) space->attributes.set(key, value);
  }
  for (auto& [key, value] : arguments.named) space->attributes.set(key, std::move(value));
  for (const auto& [key, value] : space->attributes.entries)
    if (key.is_text() && key.text().starts_with('_'))
      throw TemplateError("a namespace takes no name that begins with '_'");
  namespaces_.emplace_back(space);
  return space;
}

}  // namespace refrain::jinja
