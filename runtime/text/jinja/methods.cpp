// Methods of lists and dicts, and the global functions.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "runtime/text/jinja/builtins.h"

namespace refrain::jinja {
namespace {

using Body = std::function<Value(Rendering&, Arguments&)>;

Value make_function(std::string name, Body body) {
  auto function = std::make_shared<Function>();
  function->name = std::move(name);
  function->call = std::move(body);
  return std::shared_ptr<const Function>(std::move(function));
}

// A method that changes its object is refused when it is called, as Jinja's sandbox does.
Value refused(const Value& object, const std::string& name) {
  const std::string message =
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, object.type_name());
  return make_function(
      name, [message](Rendering&, Arguments&) -> Value { throw TemplateError(message); });
}

bool one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value dict_view(const Dict& dict, const std::string& name) {
  auto view = std::make_shared<List>();
  view->kind = ListKind::kView;
  view->depth = dict.depth + 1;
  if (name != "items") view->view_name = name == "keys" ? "dict_keys" : "dict_values";
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      view->items.push_back(Value::tuple({key, value}));
    } else {
      view->items.push_back(name == "keys" ? key : value);
    }
  }
  return view;
}

std::optional<Value> dict_method(const Value& object, const std::string& name) {
  if (one_of(name, {"clear", "pop", "popitem", "setdefault", "update"}))
    return refused(object, name);
  if (name == "get")
    return make_function(name, [object](Rendering&, Arguments& arguments) {
      ArgumentReader reader("get", arguments);
      const Value& key = reader.need(0, "key");
      const Value fallback = reader.get(1, "default", {});
      reader.done();
      const Value* value = object.as_dict()->find(key);
      return value != nullptr ? *value : fallback;
    });
  if (one_of(name, {"items", "keys", "values"}))
    return make_function(name, [object, name](Rendering& rendering, Arguments& arguments) {
      ArgumentReader(name, arguments).done();
      rendering.budget.charge(object.as_dict()->entries.size());
      return dict_view(*object.as_dict(), name);
    });
  if (name == "copy")
    return make_function(name, [object](Rendering& rendering, Arguments&) -> Value {
      rendering.budget.charge(object.as_dict()->entries.size());
      return std::make_shared<Dict>(*object.as_dict());
    });
  return std::nullopt;
}

std::optional<Value> list_method(const Value& object, const std::string& name) {
  const ListKind kind = object.as_list()->kind;
  if (kind == ListKind::kList &&
      one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}))
    return refused(object, name);
  if (kind == ListKind::kGenerator || kind == ListKind::kView || !one_of(name, {"count", "index"}))
    return std::nullopt;
  return make_function(name, [object, name](Rendering& rendering, Arguments& arguments) {
    ArgumentReader reader(name, arguments);
    const Value wanted = reader.need(0, "value");
    reader.done();
    const auto& items = object.as_list()->items;
    rendering.budget.charge(items.size() / 8);
    const auto same = [&](const Value& item) { return equal(item, wanted); };
    if (name == "count")
      return Value(static_cast<int64_t>(std::count_if(items.begin(), items.end(), same)));
    const auto it = std::find_if(items.begin(), items.end(), same);
    if (it == items.end()) throw TemplateError("the value is not in the list");
    return Value(static_cast<int64_t>(it - items.begin()));
  });
}

Value range(Rendering& rendering, Arguments& arguments) {
  constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same limit
  ArgumentReader reader("range", arguments);
  int64_t start = 0;
  int64_t stop = reader.integer(0, "stop", 0);
  if (arguments.positional.size() > 1) {
    start = stop;
    stop = reader.integer(1, "stop", 0);
  }
  const int64_t step = reader.integer(2, "step", 1);
  if (arguments.positional.empty()) throw TemplateError("range expected at least 1 argument");
  if (step == 0) throw TemplateError("range() arg 3 must not be zero");
  reader.done();
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange)
      throw TemplateError(fmt::format("range is longer than {}", kMaxRange));
    items.emplace_back(i);
    if (i > INT64_MAX - std::abs(step) || i < INT64_MIN + std::abs(step)) break;
  }
  rendering.budget.charge(items.size() / 4);
  return Value::list(std::move(items));
}

Value strftime(Rendering& rendering, Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments);
  const std::string format = reader.text(0, "format");
  reader.done();
  if (format.size() > 1024) throw TemplateError("strftime_now: the format is too long");
  const std::time_t seconds = std::chrono::system_clock::to_time_t(rendering.now);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string out(format.size() * 32 + 64, '\0');
  // A leading mark tells an empty result from one that does not fit.
  out.resize(std::strftime(out.data(), out.size(), ("x" + format).c_str(), &local));
  if (out.empty()) throw TemplateError("strftime_now: the format '" + format + "' is not usable");
  return out.substr(1);
}

Value make_dict(Rendering&, Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  for (const Value& base : arguments.positional) {
    if (base.as_dict() == nullptr) throw TemplateError("dict takes a mapping and named values");
    for (const auto& [key, value] : base.as_dict()->entries) dict->set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict->set(key, value);
  return dict;
}

Value make_namespace(Rendering& rendering, Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  if (arguments.positional.size() > 1)
    throw TemplateError("namespace takes at most one positional argument");
  for (const Value& base : arguments.positional) {
    if (base.as_dict() == nullptr) throw TemplateError("namespace takes a mapping");
    for (const auto& [key, value] : base.as_dict()->entries) space->attributes.set(key, value);
  }
  for (auto& [key, value] : arguments.named) space->attributes.set(key, std::move(value));
  for (const auto& [key, value] : space->attributes.entries)
    if (key.is_text() && key.text().starts_with('_'))
      throw TemplateError("a namespace takes no name that begins with '_'");
  rendering.circles.add(space);
  return space;
}

Value raise(Rendering&, Arguments& arguments) {
  ArgumentReader reader("raise_exception", arguments);
  throw TemplateError(to_text(reader.need(0, "message")));
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (object.is_text()) return text_method(object, name);
  if (object.as_dict() != nullptr) return dict_method(object, name);
  if (object.as_list() != nullptr) return list_method(object, name);
  return std::nullopt;
}

std::optional<Value> find_global(std::string_view name) {
  if (name == "range") return make_function("range", range);
  if (name == "dict") return make_function("dict", make_dict);
  if (name == "raise_exception") return make_function("raise_exception", raise);
  if (name == "strftime_now") return make_function("strftime_now", strftime);
  if (name == "namespace") return make_function("namespace", make_namespace);
  for (const std::string_view known : {"lipsum", "cycler", "joiner"})
    if (name == known) throw TemplateError(fmt::format("the function '{}' is not supported", name));
  return std::nullopt;
}

}  // namespace refrain::jinja
