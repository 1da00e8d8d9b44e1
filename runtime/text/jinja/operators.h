#pragma once
// Arithmetic, comparison and slices of values, with Python's meaning. All throw TemplateError where
// Python would.

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/budget.h"
#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

// a op b for arithmetic operators.
Value arithmetic(Budget& budget, Operator op, const Value& a, const Value& b);
// a op b for the others.
bool compare(Operator op, const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
Value negative(const Value& value);
Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop,
            const Value& step);

}  // namespace refrain::jinja
