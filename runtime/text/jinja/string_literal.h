#pragma once
// Escapes of string literals, as Python's. Pure function.

#include <string>
#include <string_view>

namespace refrain::jinja {

// The text a literal's body (without quotes) stands for; false if an escape is malformed.
bool unescape_literal(std::string_view body, std::string& out);

}  // namespace refrain::jinja
