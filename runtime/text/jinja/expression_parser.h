#pragma once
// Expressions of a template, from tokens to trees. All throw TemplateError naming the line.

#include "runtime/text/jinja/expression_tokens.h"

namespace refrain::jinja {

// with_condition: `a if b else c` is allowed (not in a for's iterable).
ExprPtr parse_expression(ExpressionTokens& tokens, bool with_condition = true);
// a, b, c without parentheses; of one, that one.
ExprPtr parse_tuple(ExpressionTokens& tokens, bool with_condition = true);
// What a for, set or with gives a value to: a name, names in parentheses; or an attribute.
ExprPtr parse_target(ExpressionTokens& tokens, bool allow_attribute);

}  // namespace refrain::jinja
