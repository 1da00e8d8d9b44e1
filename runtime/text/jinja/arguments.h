#pragma once
// Reading the arguments of filters, tests and functions. Borrows from the call's Arguments.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, const Arguments& arguments)
      : function_(function), arguments_(arguments) {}

  // The argument at this position or of this name; null if it is not given.
  const Value* find(size_t position, std::string_view name) {
    most_ = std::max(most_, position + 1);
    if (position < arguments_.positional.size()) return &arguments_.positional[position];
    for (const auto& [key, value] : arguments_.named) {
      if (key != name) continue;
      ++named_used_;
      return &value;
    }
    return nullptr;
  }

  Value get(size_t position, std::string_view name, Value fallback) {
    const Value* value = find(position, name);
    if (value != nullptr) return *value;
    return fallback;
  }

  const Value& need(size_t position, std::string_view name) {
    const Value* value = find(position, name);
    if (value == nullptr)
      throw TemplateError(fmt::format("{} needs the argument '{}'", function_, name));
    return *value;
  }

  int64_t integer(size_t position, std::string_view name, int64_t fallback) {
    const Value* value = find(position, name);
    if (value == nullptr) return fallback;
    if (!value->is_integer() && !value->is_bool())
      throw TemplateError(fmt::format("{}: '{}' must be an integer", function_, name));
    return value->integer();
  }

  std::string text(size_t position, std::string_view name) {
    const Value& value = need(position, name);
    if (!value.is_text())
      throw TemplateError(
          fmt::format("{}: '{}' must be a string, not {}", function_, name, value.type_name()));
    return value.text();
  }

  // Throws if an argument was given that nobody asked for.
  void done() const {
    if (arguments_.positional.size() > most_)
      throw TemplateError(fmt::format("{} takes at most {} argument(s)", function_, most_));
    if (arguments_.named.size() > named_used_)
      throw TemplateError(fmt::format("{} does not take the argument '{}'", function_,
                                      arguments_.named.back().first));
  }

 private:
  std::string_view function_;
  const Arguments& arguments_;
  size_t most_ = 0, named_used_ = 0;
};

}  // namespace refrain::jinja
