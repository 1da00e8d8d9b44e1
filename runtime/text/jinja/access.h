#pragma once
// What is reached through a value: attributes, items, what a for goes through, a function's call.
// All throw TemplateError where Jinja would.

#include <string>
#include <vector>

#include "runtime/text/jinja/rendering.h"
#include "runtime/text/jinja/value.h"

namespace refrain::jinja {

Value get_attribute(const Value& object, const std::string& name);
Value get_item(Budget& budget, const Value& object, const Value& key);
// The items a for goes through; uses a generator up.
std::vector<Value> iterate(Budget& budget, const Value& value);
Value call(Rendering& rendering, const Value& function, Arguments& arguments);

}  // namespace refrain::jinja
