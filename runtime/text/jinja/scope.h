#pragma once
// Variables of a template that runs: of a loop's turn, a macro's call, a block. Looked up outwards.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  Value* find(std::string_view name);           // here only
  const Value* look_up(std::string_view name);  // here, then outwards
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

ScopePtr inner_scope(const ScopePtr& parent);

}  // namespace refrain::jinja
