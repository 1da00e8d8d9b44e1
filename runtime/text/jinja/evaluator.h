#pragma once
// Gives expressions their values, over scopes and the variables of the rendering. One object for
// one rendering, used by one thread; what it is made of outlives it. Throws TemplateError.

#include <string>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/rendering.h"

namespace refrain::jinja {

class Evaluator {
 public:
  // variables: a dict, behind all scopes.
  Evaluator(Rendering& rendering, const Value& variables)
      : rendering_(rendering), budget_(rendering.budget), variables_(*variables.as_dict()) {}

  Value evaluate(const Expr& expr, const ScopePtr& scope);
  // A chain of filters. input: of the innermost, if that has no target (a filter block's).
  Value filter(const Expr& expr, const ScopePtr& scope, const Value* input);
  Arguments arguments(const Expr& expr, const ScopePtr& scope);
  Value look_up(const std::string& name, const ScopePtr& scope);

 private:
  std::vector<Value> all(const std::vector<ExprPtr>& exprs, const ScopePtr& scope);
  Value dict(const Expr& expr, const ScopePtr& scope);
  Value slice_of(const Expr& expr, const ScopePtr& scope);
  Value call_of(const Expr& expr, const ScopePtr& scope);
  bool comparison(const Expr& expr, const ScopePtr& scope);
  std::string concatenation(const Expr& expr, const ScopePtr& scope);

  Rendering& rendering_;
  Budget& budget_;
  const Dict& variables_;
};

}  // namespace refrain::jinja
