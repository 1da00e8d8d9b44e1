#pragma once
// The syntax tree of a template. Built by the parser, immutable after, shared by renderings.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kConst,     // value
  kName,      // name
  kList,      // args
  kTuple,     // args
  kDict,      // args: key, value, key, value, …
  kGetAttr,   // target.name
  kGetItem,   // target[args[0]]
  kSlice,     // target[args[0]:args[1]:args[2]], each may be null
  kCall,      // target(args, named, *star, **double_star)
  kFilter,    // target | name(args, named); target is null in a filter block
  kTest,      // target is name(args, named)
  kNot,       // target
  kNegative,  // target
  kPositive,  // target
  kBinary,    // args[0] op args[1]
  kCompare,   // target, then ops[i] args[i]
  kAnd,
  kOr,         // args[0], args[1]
  kConcat,     // args
  kCondition,  // args: test, then, else (may be null)
};

enum class Operator : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr {
  ExprKind kind;
  int line;
  Value value;
  std::string name;
  ExprPtr target;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
  std::vector<Operator> ops;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind : uint8_t {
  kText,      // text
  kOutput,    // expr
  kIf,        // branches: (test, body); otherwise
  kFor,       // for target in expr if test: body; otherwise
  kSet,       // target = expr
  kSetBlock,  // target = body, through filter
  kMacro,     // name(parameters): body
  kCall,      // expr is a call; parameters and body are its caller
  kFilter,    // filter over body
  kWith,      // assignments: (target, value); body
  kScope,     // body in a scope of its own ({% generation %})
  kBreak,
  kContinue,
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: none given
};

struct Statement {
  StatementKind kind;
  int line;
  std::string text;  // or the macro's name
  ExprPtr target, expr, test, filter;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  std::vector<Parameter> parameters;
  Block body, otherwise;
};

}  // namespace refrain::jinja
