// Statements.
#include "runtime/text/jinja/interpreter.h"

#include <fmt/format.h>

#include "runtime/text/jinja/arguments.h"

namespace refrain::jinja {
namespace {

ScopePtr inner(const ScopePtr& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace

Value* Scope::find(std::string_view name) {
  for (auto& [known, value] : variables)
    if (known == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* known = find(name)) {
    *known = std::move(value);
  } else {
    variables.emplace_back(name, std::move(value));
  }
}

Interpreter::Interpreter(const Limits& limits, std::chrono::system_clock::time_point now)
    : limits_(limits), now_(now) {}

Interpreter::~Interpreter() {
  for (const auto& weak : macro_scopes_)
    if (const auto scope = weak.lock()) scope->variables.clear();
  for (const auto& weak : namespaces_)
    if (const auto space = weak.lock()) space->attributes = {};
}

void Interpreter::charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps)
    throw TemplateError(fmt::format("the template takes more than {} steps", limits_.steps));
}

void Interpreter::charge_text(size_t bytes) {
  if (bytes > limits_.output_bytes)
    throw TemplateError(
        fmt::format("the template makes more than {} bytes of text", limits_.output_bytes));
  charge(bytes / 64);
}

std::string Interpreter::render(const Block& block, const Value& variables) {
  variables_ = &variables;
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
  const Nesting nesting(depth_);
  for (const auto& statement : block) {
    const Flow flow = run_statement(*statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope,
                                             std::string& out) {
  charge(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text, out);
      break;
    case StatementKind::kOutput:
      write(to_text(evaluate(*statement.expr, scope)), out);
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
      const Value input = capture(statement.body, inner(scope));
      write(to_text(evaluate_filters(*statement.filter, scope, &input)), out);
      break;
    }
    case StatementKind::kWith:
      run_with(statement, scope, out);
      break;
    case StatementKind::kScope:
      write(capture(statement.body, inner(scope)), out);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::write(std::string_view text, std::string& out) {
  charge_text(out.size() + text.size() > limits_.output_bytes ? out.size() + text.size()
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
    if (evaluate(*test, scope).truthy()) return run(body, scope, out);
  return run(statement.otherwise, scope, out);
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, const ScopePtr& scope,
                                       std::string& out) {
  auto items = iterate(evaluate(*statement.expr, scope));
  if (statement.test) {
    std::vector<Value> kept;
    for (const Value& item : items) {
      const auto turn = inner(scope);
      assign(*statement.target, item, turn);
      if (evaluate(*statement.test, turn).truthy()) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (items.empty()) return run(statement.otherwise, inner(scope), out);
  auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  for (size_t i = 0; i < loop->items.size(); ++i) {
    charge(1);
    loop->index0 = i;
    const auto turn = inner(scope);
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
    const Value object = lookup(target.target->name, scope);
    Namespace* space = object.as_namespace();
    if (space == nullptr)
      throw TemplateError("cannot assign attribute on non-namespace object '" +
                          target.target->name + "'");
    if (target.name.starts_with('_'))
      throw TemplateError("a namespace takes no name that begins with '_'");
    space->attributes.set(target.name, value);
  } else {
    const auto parts = iterate(value);
    if (parts.size() != target.args.size())
      throw TemplateError(
          fmt::format("expected {} values to unpack, got {}", target.args.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.args[i], parts[i], scope);
  }
}

void Interpreter::run_set(const Statement& statement, const ScopePtr& scope) {
  if (statement.kind == StatementKind::kSet)
    return assign(*statement.target, evaluate(*statement.expr, scope), scope);
  Value value = capture(statement.body, inner(scope));
  if (statement.filter) value = evaluate_filters(*statement.filter, scope, &value);
  assign(*statement.target, value, scope);
}

void Interpreter::run_with(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const auto block = inner(scope);
  for (const auto& [target, expr] : statement.assignments)
    assign(*target, evaluate(*expr, scope), block);
  write(capture(statement.body, block), out);
}

void Interpreter::run_call(const Statement& statement, const ScopePtr& scope, std::string& out) {
  const Expr& expr = *statement.expr;
  const Value function = evaluate(*expr.target, scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  arguments.named.emplace_back("caller", make_macro(statement, scope));
  write(to_text(call(function, arguments)), out);
}

Value Interpreter::make_macro(const Statement& macro, const ScopePtr& scope) {
  macro_scopes_.emplace_back(scope);
  auto function = std::make_shared<Function>();
  function->name = macro.text;
  function->call = [&macro, scope](Interpreter& interpreter, Arguments& arguments) {
    return interpreter.call_macro(macro, scope, arguments);
  };
  return std::shared_ptr<const Function>(std::move(function));
}

Value Interpreter::call_macro(const Statement& macro, const ScopePtr& scope, Arguments& arguments) {
  const auto frame = inner(scope);
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
      value = evaluate(*parameter.fallback, frame);
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
  const int line = line_;
  Value result = capture(macro.body, frame);
  line_ = line;
  return result;
}

}  // namespace refrain::jinja
