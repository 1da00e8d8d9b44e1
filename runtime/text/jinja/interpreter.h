#pragma once
// Runs a template's syntax tree over a set of variables, within limits. One object for one
// rendering, used by one thread; the tree and the variables outlive it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

struct Limits {
  uint64_t steps = 5'000'000;              // expressions, statements, and 64 bytes of text, each
  size_t output_bytes = size_t{16} << 20;  // of the rendering, and of any one string
};

// Variables of a loop's turn, a macro's call, a block. Looked up outwards.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  Value* find(std::string_view name);  // here only
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

// Counts how deep the interpreter is inside itself, so that the stack stays bounded.
class Nesting {
 public:
  static constexpr int kMax = 1000;
  explicit Nesting(int& depth) : depth_(depth) {
    if (++depth_ <= kMax) return;
    --depth_;
    throw TemplateError("the template recurses too deeply");
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

class Interpreter {
 public:
  Interpreter(const Limits& limits, std::chrono::system_clock::time_point now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws TemplateError.
  std::string render(const Block& block, const Value& variables);

  // For filters, tests and functions.
  Value evaluate(const Expr& expr, const ScopePtr& scope);
  Value call(const Value& function, Arguments& arguments);
  Value apply_filter(const std::string& name, const Value& input, Arguments& arguments);
  bool apply_test(const std::string& name, const Value& input, Arguments& arguments);
  // The items a for goes through; uses a generator up.
  std::vector<Value> iterate(const Value& value);
  Value get_attribute(const Value& object, const std::string& name);
  Value get_item(const Value& object, const Value& key);
  void charge(uint64_t steps);
  // Counts a string of this size against the limits before it is made.
  void charge_text(size_t bytes);
  Value make_namespace(Arguments& arguments);
  std::chrono::system_clock::time_point now() const { return now_; }

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
  Value call_macro(const Statement& macro, const ScopePtr& scope, Arguments& arguments);

  Value lookup(const std::string& name, const ScopePtr& scope);
  Value evaluate_call(const Expr& expr, const ScopePtr& scope);
  Value evaluate_filters(const Expr& expr, const ScopePtr& scope, const Value* input);
  Value evaluate_slice(const Expr& expr, const ScopePtr& scope);
  Value evaluate_compare(const Expr& expr, const ScopePtr& scope);
  Value evaluate_concat(const Expr& expr, const ScopePtr& scope);
  Value evaluate_dict(const Expr& expr, const ScopePtr& scope);
  Arguments evaluate_arguments(const Expr& expr, const ScopePtr& scope);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs, const ScopePtr& scope);

  Limits limits_;
  std::chrono::system_clock::time_point now_;
  uint64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 0;  // of the statement being run, for messages
  const Value* variables_ = nullptr;
  // What may refer to itself in a circle is taken apart at the end.
  std::vector<std::weak_ptr<Scope>> macro_scopes_;
  std::vector<std::weak_ptr<Namespace>> namespaces_;
};

// a op b for arithmetic operators (operators.cpp).
Value arithmetic(Interpreter& interpreter, Operator op, const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
Value negative(const Value& value);
Value slice(Interpreter& interpreter, const Value& value, const Value& start, const Value& stop,
            const Value& step);

}  // namespace refrain::jinja
