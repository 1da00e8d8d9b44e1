#include "runtime/text/jinja/access.h"

#include <fmt/format.h>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/operators.h"

namespace refrain::jinja {
namespace {

std::optional<Value> loop_attribute(const Value& object, const std::string& name) {
  const Loop& loop = *object.as_loop();
  const auto size = static_cast<int64_t>(loop.items.size());
  const auto index = static_cast<int64_t>(loop.index0);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index0 - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items[loop.index0 + 1]
                            : Value::undefined("there is no next item");
  if (name != "cycle" && name != "changed") return std::nullopt;
  auto function = std::make_shared<Function>();
  function->name = name;
  const bool cycle = name == "cycle";
  function->call = [object, cycle](Rendering&, Arguments& arguments) -> Value {
    Loop& state = *object.as_loop();
    if (cycle) {
      if (arguments.positional.empty()) throw TemplateError("no items for cycling given");
      return arguments.positional[state.index0 % arguments.positional.size()];
    }
    Value now = Value::tuple(arguments.positional);
    const bool changed = !state.has_changed || !equal(state.last_changed, now);
    state.has_changed = true;
    state.last_changed = now;
    return changed;
  };
  return Value(std::shared_ptr<const Function>(std::move(function)));
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw TemplateError(object.why_undefined());
  if (object.as_function() != nullptr)
    throw TemplateError("the attributes of a function are not supported ('" + name + "')");
  if (object.as_loop() != nullptr) {
    if (auto value = loop_attribute(object, name)) return *value;
  }
  if (const Namespace* space = object.as_namespace()) {
    if (const Value* value = space->attributes.find(std::string_view(name))) return *value;
  }
  if (auto method = find_method(object, name)) return *method;
  if (const Dict* dict = object.as_dict())
    if (const Value* value = dict->find(std::string_view(name))) return *value;
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

Value get_item(Budget& budget, const Value& object, const Value& key) {
  if (object.is_undefined()) throw TemplateError(object.why_undefined());
  if (const Dict* dict = object.as_dict()) {
    if (const Value* value = dict->find(key)) return *value;
  }
  const List* list = object.as_list();
  const bool indexed =
      list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple);
  if ((indexed || object.is_text()) && key.is_number() && !key.is_float()) {
    const auto size =
        static_cast<int64_t>(indexed ? list->items.size() : character_count(object.text()));
    const int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at >= 0 && at < size)
      return indexed ? list->items[static_cast<size_t>(at)] : slice(budget, object, at, at + 1, {});
  }
  if (key.is_text()) return get_attribute(object, key.text());
  return Value::undefined(
      fmt::format("'{} object' has no element {}", object.type_name(), to_repr(key)));
}

std::vector<Value> iterate(Budget& budget, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (List* list = value.as_list()) {
    budget.charge(list->items.size() / 4);
    if (list->kind == ListKind::kGenerator) {
      if (!list->error_behind.empty()) throw TemplateError(list->error_behind);
      return std::exchange(list->items, {});
    }
    return list->items;
  }
  if (const Dict* dict = value.as_dict()) {
    budget.charge(dict->entries.size());
    for (const auto& [key, ignored] : dict->entries) items.push_back(key);
    return items;
  }
  if (value.is_text()) {
    budget.charge(value.text().size());
    for (std::string& c : characters(value.text())) items.emplace_back(std::move(c));
    return items;
  }
  throw TemplateError(fmt::format("'{}' object is not iterable", value.type_name()));
}

Value call(Rendering& rendering, const Value& function, Arguments& arguments) {
  if (function.is_undefined()) throw TemplateError(function.why_undefined());
  if (function.as_function() == nullptr)
    throw TemplateError(std::string("'") + function.type_name() + "' object is not callable");
  const auto keep = function.function();
  return keep->call(rendering, arguments);
}

}  // namespace refrain::jinja
