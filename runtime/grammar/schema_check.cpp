#include "runtime/grammar/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace refrain {
namespace {

using Json = nlohmann::json;

constexpr std::array kUnsupported = {"not",
                                     "if",
                                     "then",
                                     "else",
                                     "dependentRequired",
                                     "dependencies",
                                     "dependentSchemas",
                                     "uniqueItems",
                                     "contains",
                                     "minContains",
                                     "maxContains",
                                     "$dynamicRef",
                                     "$recursiveRef",
                                     "additionalItems"};
// The first of them in a schema decides, and what else it asks of values is not looked at.
constexpr std::array kDeciding = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::array kAsking = {"properties",
                                "required",
                                "additionalProperties",
                                "patternProperties",
                                "propertyNames",
                                "minProperties",
                                "maxProperties",
                                "items",
                                "prefixItems",
                                "minItems",
                                "maxItems",
                                "minLength",
                                "maxLength",
                                "pattern",
                                "format",
                                "minimum",
                                "maximum",
                                "exclusiveMinimum",
                                "exclusiveMaximum",
                                "multipleOf",
                                "unevaluatedItems",
                                "unevaluatedProperties"};
// What makes a schema without a type one of objects or arrays.
constexpr std::array kTyping = {"properties", "additionalProperties", "unevaluatedProperties",
                                "items",      "prefixItems",          "unevaluatedItems"};
constexpr std::array kFormats = {"email",         "date",
                                 "time",          "date-time",
                                 "duration",      "ipv4",
                                 "ipv6",          "hostname",
                                 "uuid",          "uri",
                                 "uri-reference", "uri-template",
                                 "json-pointer",  "relative-json-pointer"};

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 7> kTypes = {"number", "integer", "string", "boolean",
                                                    "null",   "array",   "object"};

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "number") return value.is_number();
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : type == "object" && value.is_object();
}

// Those that a schema names, each once: they are looked at for each value of an enum.
std::set<std::string> types_of(const Json& named) {
  std::set<std::string> types;
  const auto take = [&](const Json& type) {
    if (type.is_string() && std::ranges::count(kTypes, type.get_ref<const std::string&>()) > 0)
      types.insert(type.get<std::string>());
  };
  if (named.is_array()) {
    for (const Json& type : named) take(type);
  } else {
    take(named);
  }
  return types;
}

bool is_of_types(const Json& value, const std::set<std::string>& types) {
  return std::any_of(types.begin(), types.end(),
                     [&](const std::string& type) { return is_of_type(value, type); });
}

// Whether all that the deciding keyword of a schema lets through is of these types anyway.
bool decides_within(const Json& schema, const std::string& decides, const Json& types) {
  if (decides == "$ref") return false;
  const std::set<std::string> allowed = types_of(types);
  if (decides == "const") return is_of_types(schema["const"], allowed);
  const Json& listed = schema[decides];
  return listed.is_array() && std::all_of(listed.begin(), listed.end(), [&](const Json& one) {
           return decides == "enum" ? is_of_types(one, allowed)
                                    : one.is_object() && one.value("type", Json()) == types;
         });
}

std::string left_out_beside(const Json& schema) {
  const auto decides = std::find_if(kDeciding.begin(), kDeciding.end(),
                                    [&](const char* name) { return schema.contains(name); });
  if (decides == kDeciding.end()) return {};
  for (const auto& [name, value] : schema.items()) {
    const bool other = has(kDeciding, name) && name != *decides;
    const bool type = name == "type" && !decides_within(schema, *decides, value);
    if (other || type || has(kAsking, name)) return name + " beside " + *decides;
  }
  return {};
}

// A schema without a type is one of any value, unless a keyword says object or array.
std::string left_out_without_type(const Json& schema) {
  if (schema.contains("type")) return {};
  for (const auto& [name, value] : schema.items()) {
    if (has(kTyping, name) || has(kDeciding, name)) return {};
  }
  for (const auto& [name, value] : schema.items()) {
    if (has(kAsking, name)) return name + " without type";
  }
  return {};
}

std::string empty_list(const Json& schema) {
  for (const char* name : {"type", "enum", "anyOf", "oneOf", "allOf"}) {
    if (const auto at = schema.find(name); at != schema.end() && at->is_array() && at->empty())
      return fmt::format("{} of nothing", name);
  }
  return {};
}

bool allows_members_without_names(const Json& schema) {
  const auto not_false = [&](const char* name) {
    const auto at = schema.find(name);
    return at != schema.end() && *at != false;
  };
  if (schema.contains("patternProperties") || schema.contains("propertyNames")) return true;
  if (schema.contains("additionalProperties")) return not_false("additionalProperties");
  return not_false("unevaluatedProperties") || !schema.contains("properties");
}

// A grammar does not know which names an object has already: one that is not in `properties` may
// come again, and is not looked for.
std::string left_out_of_members(const Json& schema) {
  const Json none = Json::object();
  const auto member = [&](const char* name) -> const Json& {
    const auto at = schema.find(name);
    return at == schema.end() ? none : *at;
  };
  const Json& properties = member("properties");
  const Json& patterns = member("patternProperties");
  if (!properties.empty() && !patterns.empty()) return "patternProperties beside properties";
  if (schema.contains("propertyNames") && !properties.empty())
    return "propertyNames beside properties";
  if (schema.contains("propertyNames") && !patterns.empty())
    return "propertyNames beside patternProperties";
  if (patterns.is_object() && patterns.size() > 1) return "patternProperties of several patterns";
  const Json& required = member("required");
  for (const Json& name : required) {
    if (name.is_string() && !properties.contains(name.get<std::string>()))
      return fmt::format("required {} without its property", name.dump());
  }
  const Json& least = member("minProperties");
  if (least.is_number() && least > std::max<size_t>(1, required.size()) &&
      allows_members_without_names(schema))
    return "minProperties of members without names";
  return {};
}

std::string in_members(const Json& members) {
  if (!members.is_object()) return {};
  for (const auto& [name, schema] : members.items()) {
    if (std::string found = unsupported_keyword(schema); !found.empty()) return found;
  }
  return {};
}

std::string in_list(const Json& list) {
  if (!list.is_array()) return {};
  for (const Json& schema : list) {
    if (std::string found = unsupported_keyword(schema); !found.empty()) return found;
  }
  return {};
}

}  // namespace

std::string unsupported_keyword(const Json& schema) {
  if (!schema.is_object()) return {};
  for (const char* name : kUnsupported) {
    if (schema.contains(name)) return name;
  }
  for (const auto left_out :
       {empty_list, left_out_beside, left_out_without_type, left_out_of_members}) {
    if (std::string found = left_out(schema); !found.empty()) return found;
  }
  if (const auto format = schema.find("format");
      format != schema.end() && format->is_string() && !has(kFormats, format->get<std::string>()))
    return "format " + format->dump();
  for (const char* name : {"properties", "patternProperties", "$defs", "definitions"}) {
    if (const auto at = schema.find(name); at != schema.end())
      if (std::string found = in_members(*at); !found.empty()) return found;
  }
  for (const char* name : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
    if (const auto at = schema.find(name); at != schema.end())
      if (std::string found = in_list(*at); !found.empty()) return found;
  }
  for (const char* name :
       {"items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"}) {
    if (const auto at = schema.find(name); at != schema.end())
      if (std::string found = unsupported_keyword(*at); !found.empty()) return found;
  }
  if (const auto names = schema.find("propertyNames");
      names != schema.end() && names->is_object()) {
    Json strings = *names;
    strings.emplace("type", "string");
    return unsupported_keyword(strings);
  }
  return {};
}

}  // namespace refrain
