// Filters on sequences and mappings, and the dispatch of all filters.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/unicode/unicode.h"

namespace refrain::jinja {
namespace {

Value folded(const Value& value, bool case_sensitive) {
  return value.is_text() && !case_sensitive ? Value(text::to_lower(value.text())) : value;
}

// "a.b.0" of an item, part by part.
Value attribute_of(Budget& budget, const Value& item, const Value& path) {
  if (path.is_integer()) return get_item(budget, item, path);
  Value value = item;
  std::string_view rest = path.text();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size();
    value = get_item(budget, value, number ? Value(index) : Value(part));
    if (dot == std::string_view::npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

Value path_argument(FilterCall& call, size_t position) {
  const Value path = call.reader.get(position, "attribute", {});
  if (!path.is_none() && !path.is_text() && !path.is_integer())
    throw TemplateError(fmt::format("{}: 'attribute' must be a string", call.name));
  return path;
}

Value by_path(FilterCall& call, const Value& item, const Value& path) {
  return path.is_none() ? item : attribute_of(call.rendering.budget, item, path);
}

// The values for sorting, beside their items.
std::vector<std::pair<Value, Value>> keyed(FilterCall& call, const std::vector<Value>& items,
                                           const Value& path, bool case_sensitive) {
  std::vector<std::pair<Value, Value>> pairs;
  for (const Value& item : items)
    pairs.emplace_back(folded(by_path(call, item, path), case_sensitive), item);
  call.rendering.budget.charge(items.size() * 4);
  return pairs;
}

bool key_less(const std::pair<Value, Value>& a, const std::pair<Value, Value>& b) {
  return less(a.first, b.first);
}

// Checks comparability first: std::sort must not see a comparison throw half-way.
void sort_pairs(std::vector<std::pair<Value, Value>>& pairs, bool reverse) {
  for (size_t i = 1; i < pairs.size(); ++i) key_less(pairs[i - 1], pairs[i]);
  std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
    return reverse ? key_less(b, a) : key_less(a, b);
  });
}

Value sort(FilterCall& call) {
  const bool reverse = call.reader.get(0, "reverse", false).truthy();
  const bool case_sensitive = call.reader.get(1, "case_sensitive", false).truthy();
  const Value path = path_argument(call, 2);
  auto pairs = keyed(call, iterate(call.rendering.budget, call.input), path, case_sensitive);
  sort_pairs(pairs, reverse);
  std::vector<Value> items;
  for (auto& [key, item] : pairs) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value dict_sort(FilterCall& call) {
  const bool case_sensitive = call.reader.get(0, "case_sensitive", false).truthy();
  const std::string by = to_text(call.reader.get(1, "by", "key"));
  const bool reverse = call.reader.get(2, "reverse", false).truthy();
  const Dict* dict = call.input.as_dict();
  if (dict == nullptr) throw TemplateError("dictsort needs a mapping");
  if (by != "key" && by != "value") throw TemplateError("dictsort: 'by' must be key or value");
  std::vector<std::pair<Value, Value>> pairs;
  for (const auto& [key, value] : dict->entries)
    pairs.emplace_back(folded(by == "key" ? key : value, case_sensitive),
                       Value::tuple({key, value}));
  call.rendering.budget.charge(pairs.size() * 4);
  sort_pairs(pairs, reverse);
  std::vector<Value> items;
  for (auto& [key, item] : pairs) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Value unique(FilterCall& call) {
  const bool case_sensitive = call.reader.get(0, "case_sensitive", false).truthy();
  const Value path = path_argument(call, 1);
  std::vector<Value> items;
  Dict seen;
  for (auto& [key, item] :
       keyed(call, iterate(call.rendering.budget, call.input), path, case_sensitive)) {
    call.rendering.budget.charge(key.is_text() ? 1 : seen.entries.size());
    if (seen.find(key) != nullptr) continue;
    seen.set(key, true);
    items.push_back(item);
  }
  return Value::generator(std::move(items));
}

Value extreme(FilterCall& call, bool largest) {
  const bool case_sensitive = call.reader.get(0, "case_sensitive", false).truthy();
  const Value path = path_argument(call, 1);
  const auto pairs = keyed(call, iterate(call.rendering.budget, call.input), path, case_sensitive);
  if (pairs.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  const auto* best = &pairs.front();
  for (const auto& pair : pairs)
    if (largest ? key_less(*best, pair) : key_less(pair, *best)) best = &pair;
  return best->second;
}

Value sum(FilterCall& call) {
  const Value path = path_argument(call, 0);
  Value total = call.reader.get(1, "start", int64_t{0});
  for (const Value& item : iterate(call.rendering.budget, call.input))
    total = arithmetic(call.rendering.budget, Operator::kAdd, total, by_path(call, item, path));
  return total;
}

Value join(FilterCall& call) {
  const std::string separator = to_text(call.reader.get(0, "d", ""));
  const Value path = path_argument(call, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(call.rendering.budget, call.input)) {
    if (!first) out += separator;
    first = false;
    const size_t before = out.size();
    out += to_text(by_path(call, item, path));
    call.rendering.budget.charge_text(out.size() > (size_t{1} << 20) ? out.size()
                                                                     : out.size() - before);
  }
  call.rendering.budget.charge_text(out.size());
  return out;
}

// Applies `each` to the items one by one, as a generator would: what goes wrong at an item shows
// only when that item is asked for.
template <class Each>
Value lazily(FilterCall& call, Each each) {
  auto out = std::make_shared<List>();
  out->kind = ListKind::kGenerator;
  // What is false is not looked into: none is as good as an empty list.
  List* input = call.input.as_list();
  std::string error_behind;
  if (input != nullptr && input->kind == ListKind::kGenerator)
    error_behind = std::exchange(input->error_behind, {});
  const auto items =
      call.input.truthy() ? iterate(call.rendering.budget, call.input) : std::vector<Value>();
  try {
    for (const Value& item : items) {
      call.rendering.budget.charge(1);
      each(item, out->items);
    }
  } catch (const TemplateError& error) {
    error_behind = error.what();
  }
  for (const Value& item : out->items) out->depth = std::max(out->depth, item.depth() + 1);
  out->error_behind = std::move(error_behind);
  return out;
}

// map(attribute=…, default=…) or map("filter", arguments…).
Value map(FilterCall& call) {
  auto& arguments = call.arguments;
  if (arguments.positional.empty()) {
    const Value path = path_argument(call, 9);
    const Value* fallback = call.reader.find(9, "default");
    if (path.is_none()) throw TemplateError("map needs a filter or 'attribute'");
    return lazily(call, [&](const Value& item, std::vector<Value>& out) {
      Value value = attribute_of(call.rendering.budget, item, path);
      out.push_back(value.is_undefined() && fallback != nullptr ? *fallback : value);
    });
  }
  const std::string filter = to_text(arguments.positional[0]);
  Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  return lazily(call, [&](const Value& item, std::vector<Value>& out) {
    out.push_back(apply_filter(call.rendering, filter, item, rest));
  });
}

// select, reject, selectattr, rejectattr: items whose value (or attribute) passes a test.
Value filter_items(FilterCall& call, bool by_attribute, bool keep) {
  const auto& positional = call.arguments.positional;
  const size_t first = by_attribute ? 1 : 0;
  if (by_attribute &&
      (positional.empty() || (!positional[0].is_text() && !positional[0].is_integer())))
    throw TemplateError(fmt::format("{} needs an attribute's name", call.name));
  Arguments rest;
  if (positional.size() > first)
    rest.positional.assign(positional.begin() + static_cast<ptrdiff_t>(first) + 1,
                           positional.end());
  rest.named = call.arguments.named;
  return lazily(call, [&](const Value& item, std::vector<Value>& out) {
    const Value value =
        by_attribute ? attribute_of(call.rendering.budget, item, positional[0]) : item;
    const bool passes = positional.size() > first
                            ? apply_test(to_text(positional[first]), value, rest)
                            : value.truthy();
    if (passes == keep) out.push_back(item);
  });
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return static_cast<int64_t>(character_count(value.text()));
  if (const Dict* dict = value.as_dict()) return static_cast<int64_t>(dict->entries.size());
  if (const List* list = value.as_list(); list != nullptr && list->kind != ListKind::kGenerator)
    return static_cast<int64_t>(list->items.size());
  throw TemplateError(fmt::format("object of type '{}' has no len()", value.type_name()));
}

Value reversed(FilterCall& call) {
  if (call.input.is_text()) {
    std::string out;
    auto chars = characters(call.input.text());
    for (auto it = chars.rbegin(); it != chars.rend(); ++it) out += *it;
    return out;
  }
  auto items = iterate(call.rendering.budget, call.input);
  std::reverse(items.begin(), items.end());
  return Value::generator(std::move(items));
}

Value first_of(FilterCall& call) {
  if (List* list = call.input.as_list(); list != nullptr && list->kind == ListKind::kGenerator) {
    if (list->items.empty() && !list->error_behind.empty()) throw TemplateError(list->error_behind);
    if (list->items.empty()) return Value::undefined("No first item, sequence was empty.");
    Value first = list->items.front();
    list->items.erase(list->items.begin());
    return first;
  }
  const auto items = iterate(call.rendering.budget, call.input);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_of(FilterCall& call) {
  const List* list = call.input.as_list();
  if (list != nullptr && list->kind == ListKind::kGenerator)
    throw TemplateError("'generator' object is not reversible");
  const auto items = iterate(call.rendering.budget, call.input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value items_of(const Value& input) {
  std::vector<Value> items;
  if (input.is_undefined()) return Value::generator({});
  if (input.as_dict() == nullptr) throw TemplateError("Can only get item pairs from a mapping.");
  for (const auto& [key, value] : input.as_dict()->entries)
    items.push_back(Value::tuple({key, value}));
  return Value::generator(std::move(items));
}

constexpr std::string_view kFilters[] = {
    "abs",   "attr",   "capitalize", "count",      "d",           "default",  "dictsort",
    "e",     "escape", "first",      "float",      "forceescape", "format",   "indent",
    "int",   "items",  "join",       "last",       "length",      "list",     "lower",
    "map",   "max",    "min",        "reject",     "rejectattr",  "replace",  "reverse",
    "round", "safe",   "select",     "selectattr", "sort",        "string",   "sum",
    "title", "tojson", "trim",       "unique",     "upper",       "wordcount"};

}  // namespace

bool is_known_filter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}

bool value_filter(FilterCall& call, Value& result) {
  const std::string& name = call.name;
  if (name == "default" || name == "d") {
    const Value fallback = call.reader.get(0, "default_value", "");
    const bool boolean = call.reader.get(1, "boolean", false).truthy();
    const bool use = call.input.is_undefined() || (boolean && !call.input.truthy());
    result = use ? fallback : call.input;
  } else if (name == "length" || name == "count") {
    result = length(call.input);
  } else if (name == "attr") {
    const std::string attribute = call.reader.text(0, "name");
    auto method = find_method(call.input, attribute);
    result = method ? *method : Value::undefined("there is no attribute '" + attribute + "'");
  } else if (name == "items") {
    result = items_of(call.input);
  } else if (name == "list") {
    result = Value::list(iterate(call.rendering.budget, call.input));
  } else if (name == "first") {
    result = first_of(call);
  } else if (name == "last") {
    result = last_of(call);
  } else if (name == "reverse") {
    result = reversed(call);
  } else {
    return false;
  }
  return true;
}

bool list_filter(FilterCall& call, Value& result) {
  const std::string& name = call.name;
  if (name == "join") {
    result = join(call);
  } else if (name == "dictsort") {
    result = dict_sort(call);
  } else if (name == "sort") {
    result = sort(call);
  } else if (name == "unique") {
    result = unique(call);
  } else if (name == "min" || name == "max") {
    result = extreme(call, name == "max");
  } else if (name == "sum") {
    result = sum(call);
  } else {
    return false;
  }
  return true;
}

Value apply_filter(Rendering& rendering, const std::string& name, const Value& input,
                   Arguments& arguments) {
  const Budget::Nesting nesting(rendering.budget);
  FilterCall call{rendering, name, input, arguments, ArgumentReader(name, arguments)};
  // These hand their arguments on to another filter or test.
  if (name == "map") return map(call);
  if (name == "select" || name == "reject") return filter_items(call, false, name == "select");
  if (name == "selectattr" || name == "rejectattr")
    return filter_items(call, true, name == "selectattr");
  Value result;
  if (!value_filter(call, result) && !text_filter(call, result) && !list_filter(call, result))
    throw TemplateError(fmt::format("no filter named '{}'", name));
  call.reader.done();
  return result;
}

}  // namespace refrain::jinja
