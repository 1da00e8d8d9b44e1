#pragma once
// Runs the statements of a template's syntax tree. One object for one rendering, used by one
// thread; what it is made of and the tree outlive it.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/text/jinja/evaluator.h"

namespace refrain::jinja {

class Interpreter {
 public:
  // variables: a dict.
  Interpreter(Rendering& rendering, const Value& variables)
      : rendering_(rendering), budget_(rendering.budget), expressions_(rendering, variables) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws TemplateError naming the line.
  std::string render(const Block& block);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  Flow run(const Block& block, const ScopePtr& scope, std::string& out);
  Flow run_statement(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_if(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_for(const Statement& statement, const ScopePtr& scope, std::string& out);
  void run_set(const Statement& statement, const ScopePtr& scope);
  void run_call(const Statement& statement, const ScopePtr& scope, std::string& out);
  void run_with(const Statement& statement, const ScopePtr& scope, std::string& out);
  void assign(const Expr& target, const Value& value, const ScopePtr& scope);
  void write(std::string_view text, std::string& out);
  std::string capture(const Block& block, const ScopePtr& scope);
  Value make_macro(const Statement& macro, const ScopePtr& scope);
  void bind_parameters(const Statement& macro, const Arguments& arguments, const ScopePtr& frame);

  Rendering& rendering_;
  Budget& budget_;
  Evaluator expressions_;
  int line_ = 0;  // of the statement being run, for messages
};

}  // namespace refrain::jinja
