#pragma once
// From tokens to a syntax tree: Jinja's grammar, less what chat templates have no use for (which is
// refused by name). Pure function.

#include <string_view>

#include "runtime/text/jinja/ast.h"

namespace refrain::jinja {

// Throws TemplateError naming the line and the construct.
Block parse(std::string_view source);

}  // namespace refrain::jinja
