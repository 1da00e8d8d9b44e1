// Statements.
#include "runtime/text/jinja/interpreter.h"

#include <fmt/format.h>

#include "runtime/text/jinja/access.h"

namespace refrain::jinja {
std::string Interpreter::render(const Block& block) {
  auto root = std::make_shared<Scope>();
  std::string out;
  try {
    run(block, root, out);
  } catch (const TemplateError& error) {
    throw TemplateError(fmt::format("line {}: {}", line_, error.what()));
  }
  return out;
}

Interpreter::Flow Interpreter::run(const Block& block, const ScopePtr& scope, std::string& out) {
  const Budget::Nesting nesting(budget_);
  for (const auto& statement : block) {
    const Flow flow = run_statement(*statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope,
                                             std::string& out) {
  budget_.charge(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text, out);
      break;
    case StatementKind::kOutput:
      write(to_text(expressions_.evaluate(*statement.expr, scope)), out);
      break;
    case StatementKind::kIf:
      return run_if(statement, scope, out);
    case StatementKind::kFor:
      return run_for(statement, scope, out);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      run_set(statement, scope);
      break;
    case StatementKind::kMacro:
      scope->set(statement.text, make_macro(statement, scope));
      break;
    case StatementKind::kCall:
      run_call(statement, scope, out);
      break;
    case StatementKind::kFilter: {
      const Value input = capture(statement.body, inner_scope(scope));
      write(to_text(expressions_.filter(*statement.filter, scope, &input)), out);
      break;
    }
    case StatementKind::kWith:
      run_with(statement, scope, out);
      break;
    case StatementKind::kScope:
      write(capture(statement.body, inner_scope(scope)), out);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::write(std::string_view text, std::string& out) {
  budget_.charge_text(out.size() + text.size() > budget_.most_text() ? out.size() + text.size()
                                                                     : text.size());
  out.append(text);
}

std::string Interpreter::capture(const Block& block, const ScopePtr& scope) {
  std::string out;
  run(block, scope, out);
  return out;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, const ScopePtr& scope,
                                      std::string& out) {
  for (const auto& [test, body] : statement.branches)
    if (expressions_.evaluate(*test, scope).truthy()) return run(body, scope, out);
  return run(statement.otherwise, scope, out);
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, const ScopePtr& scope,
                                       std::string& out) {
  auto items = iterate(budget_, expressions_.evaluate(*statement.expr, scope));
  if (statement.test) {
    std::vector<Value> kept;
    for (const Value& item : items) {
      const auto turn = inner_scope(scope);
      assign(*statement.target, item, turn);
      if (expressions_.evaluate(*statement.test, turn).truthy()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (items.empty()) return run(statement.otherwise, inner_scope(scope), out);
  auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  for (size_t i = 0; i < loop->items.size(); ++i) {
    budget_.charge(1);
    loop->index0 = i;
    const auto turn = inner_scope(scope);
    turn->set("loop", loop);
    assign(*statement.target, loop->items[i], turn);
    if (run(statement.body, turn, out) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

void Interpreter::assign(const Expr& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == ExprKind::kName) {
    scope->set(target.name, value);
  } else if (target.kind == ExprKind::kGetAttr) {
    const Value object = expressions_.look_up(target.target->name, scope);
    Namespace* space = object.as_namespace();
    if (space == nullptr)
      throw TemplateError("cannot assign attribute on non-namespace object '" +
                          target.target->name + "'");
    if (target.name.starts_with('_'))
      throw TemplateError("a namespace takes no name that begins with '_'");
    space->attributes.set(target.name, value);
  } else {
    const auto parts = iterate(budget_, value);
    if (parts.size() != target.args.size())
      throw TemplateError(
          fmt::format("expected {} values to unpack, got {}", target.args.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.args[i], parts[i], scope);
  }
}

void Interpreter::run_set(const Statement& statement, const ScopePtr& scope) {
  if (statement.kind == StatementKind::kSet)
    return assign(*statement.target, expressions_.evaluate(*statement.expr, scope), scope);
  Value value = capture(statement.body, inner_scope(scope));
  if (statement.filter) value = expressions_.filter(*statement.filter, scope, &value);
  assign(*statement.target, value, scope);
}

void Interpreter::run_with(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const auto block = inner_scope(scope);
  for (const auto& [target, expr] : statement.assignments)
    assign(*target, expressions_.evaluate(*expr, scope), block);
  write(capture(statement.body, block), out);
}

void Interpreter::run_call(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Expr& expr = *statement.expr;
  const Value function = expressions_.evaluate(*expr.target, scope);
  Arguments arguments = expressions_.arguments(expr, scope);
  arguments.named.emplace_back("caller", make_macro(statement, scope));
  write(to_text(call(rendering_, function, arguments)), out);
}

Value Interpreter::make_macro(const Statement& macro, const ScopePtr& scope) {
  rendering_.circles.add(scope);
  auto function = std::make_shared<Function>();
  function->name = macro.text;
  function->call = [this, &macro, scope](Rendering&, Arguments& arguments) -> Value {
    const auto frame = inner_scope(scope);
    bind_parameters(macro, arguments, frame);
    const int line = line_;
    std::string text = capture(macro.body, frame);
    line_ = line;
    return text;
  };
  return std::shared_ptr<const Function>(std::move(function));
}

void Interpreter::bind_parameters(const Statement& macro, const Arguments& arguments,
                                  const ScopePtr& frame) {
  auto rest_named = std::make_shared<Dict>();
  const auto find_parameter = [&](const std::string& name) {
    for (size_t i = 0; i < macro.parameters.size(); ++i)
      if (macro.parameters[i].name == name) return i;
    return macro.parameters.size();
  };
  std::vector<const Value*> given(macro.parameters.size(), nullptr);
  for (size_t i = 0; i < arguments.positional.size() && i < given.size(); ++i)
    given[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const size_t i = find_parameter(name);
    if (i < given.size()) {
      if (given[i] != nullptr) throw TemplateError("two values for the argument '" + name + "'");
      given[i] = &value;
    } else if (name == "caller") {
      frame->set("caller", value);
    } else {
      rest_named->set(name, value);
    }
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    Value value = Value::undefined("parameter '" + parameter.name + "' was not provided");
    if (given[i] != nullptr) {
      value = *given[i];
    } else if (parameter.fallback) {
      value = expressions_.evaluate(*parameter.fallback, frame);
    }
    frame->set(parameter.name, value);
  }
  // What a macro does not name is an error unless its body asks for varargs or kwargs, which no
  // known template does.
  if (arguments.positional.size() > given.size())
    throw TemplateError(
        fmt::format("macro '{}' takes not more than {} argument(s)", macro.text, given.size()));
  if (!rest_named->entries.empty())
    throw TemplateError(fmt::format("macro '{}' takes no keyword argument '{}'", macro.text,
                                    rest_named->entries.front().first.text()));
}

}  // namespace refrain::jinja
