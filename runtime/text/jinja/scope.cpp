#include "runtime/text/jinja/scope.h"

namespace refrain::jinja {

Value* Scope::find(std::string_view name) {
  for (auto& [known, value] : variables)
    if (known == name) return &value;
  return nullptr;
}

const Value* Scope::look_up(std::string_view name) {
  for (Scope* at = this; at != nullptr; at = at->parent.get())
    if (const Value* found = at->find(name)) return found;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* known = find(name)) {
    *known = std::move(value);
  } else {
    variables.emplace_back(name, std::move(value));
  }
}

ScopePtr inner_scope(const ScopePtr& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

}  // namespace refrain::jinja
