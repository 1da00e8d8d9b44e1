#pragma once
// What of JSON Schema a grammar keeps to. A pure function.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace refrain {

// The first keyword of a schema that no grammar is made of, or that is left out where it stands
// ("not", or "minLength beside anyOf"); empty: all are kept. Keywords that JSON Schema does not
// know count as remarks. `field` fails on schemas that are neither objects nor booleans too.
std::string unsupported_keyword(const nlohmann::json& schema);

}  // namespace refrain
