#pragma once
// What the language brings along: global functions, methods of values, filters, tests, formatting.
// All functions are pure but for the rendering's budget and throw TemplateError.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/text/jinja/arguments.h"
#include "runtime/text/jinja/rendering.h"
#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

std::optional<Value> find_global(std::string_view name);  // range, namespace, raise_exception, …

// The method `name` of a text, list or dict, bound to it; nothing if Python's type has none.
std::optional<Value> find_method(const Value& object, const std::string& name);
std::optional<Value> text_method(const Value& object, const std::string& name);

// Python's str.format and str % arguments.
std::string format_braces(std::string_view format, const Arguments& arguments);
std::string format_percent(std::string_view format, const Value& arguments);

struct JsonOptions {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(Budget& budget, const Value& value, const JsonOptions& options);

std::string escape_html(std::string_view text);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t count);
// chars: the characters to take off; null: white space.
std::string strip(std::string_view text, const std::string* chars, bool left, bool right);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::vector<std::string> characters(std::string_view text);
size_t character_count(std::string_view text);

Value apply_filter(Rendering& rendering, const std::string& name, const Value& input,
                   Arguments& arguments);
bool apply_test(const std::string& name, const Value& input, Arguments& arguments);

// Filters by group; false if the group has none of that name.
struct FilterCall {
  Rendering& rendering;
  const std::string& name;
  const Value& input;
  Arguments& arguments;
  ArgumentReader reader;
};
bool text_filter(FilterCall& call, Value& result);
bool list_filter(FilterCall& call, Value& result);
bool value_filter(FilterCall& call, Value& result);

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace refrain::jinja
