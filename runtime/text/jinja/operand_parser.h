#pragma once
// What stands between the operators of an expression: literals and names with their signs, and what
// hangs on them: attributes, items, calls, filters, tests. All throw TemplateError naming the line.

#include "runtime/text/jinja/expression_tokens.h"

namespace refrain::jinja {

ExprPtr parse_operand(ExpressionTokens& tokens);
// `| name(arguments) | …` on `input`; null: the block's text. with_bar: the first has its bar, too.
ExprPtr parse_filters(ExpressionTokens& tokens, ExprPtr input, bool with_bar);

}  // namespace refrain::jinja
