#include "runtime/text/jinja/value.h"

#include <algorithm>
#include <limits>

#include "runtime/base/json.h"

namespace refrain::jinja {
namespace {

uint32_t depth_of(const std::vector<Value>& items) {
  uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  if (depth >= kMaxValueDepth) throw TemplateError("values are nested too deeply");
  return depth + 1;
}

Value make_list(ListKind kind, std::vector<Value> items) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->depth = depth_of(items);
  list->items = std::move(items);
  return list;
}

}  // namespace

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

Value Value::list(std::vector<Value> items) { return make_list(ListKind::kList, std::move(items)); }
Value Value::tuple(std::vector<Value> items) {
  return make_list(ListKind::kTuple, std::move(items));
}
Value Value::generator(std::vector<Value> items) {
  return make_list(ListKind::kGenerator, std::move(items));
}

int64_t Value::integer() const {
  return is_bool() ? static_cast<int64_t>(std::get<bool>(data_)) : std::get<int64_t>(data_);
}

double Value::number() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_none() || is_undefined()) return false;
  if (is_float()) return number() != 0;
  if (is_number()) return integer() != 0;
  if (is_text()) return !text().empty();
  if (const List* list = as_list())
    return list->kind == ListKind::kGenerator || !list->items.empty();
  if (const Dict* dict = as_dict()) return !dict->entries.empty();
  return true;
}

const char* Value::type_name() const {
  if (is_none()) return "NoneType";
  if (is_undefined()) return "Undefined";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (const List* list = as_list()) {
    switch (list->kind) {
      case ListKind::kList:
        return "list";
      case ListKind::kTuple:
        return "tuple";
      case ListKind::kGenerator:
        return "generator";
      case ListKind::kView:
        return list->view_name;
    }
  }
  if (as_dict() != nullptr) return "dict";
  if (as_namespace() != nullptr) return "Namespace";
  if (as_loop() != nullptr) return "LoopContext";
  return "function";
}

uint32_t Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  if (const Namespace* space = as_namespace()) return space->attributes.depth;
  return 0;
}

const void* Value::identity() const {
  if (const List* list = as_list()) return list;
  if (const Dict* dict = as_dict()) return dict;
  if (const Namespace* space = as_namespace()) return space;
  return as_function();
}

const Value* Dict::find(std::string_view key) const {
  const auto it = index_.find(std::string(key));
  return it == index_.end() ? nullptr : &entries[it->second].second;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_text()) return find(std::string_view(key.text()));
  for (const auto& [known, value] : entries)
    if (!known.is_text() && equal(known, key)) return &value;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  const List* list = key.as_list();
  if (key.as_dict() != nullptr || (list != nullptr && list->kind != ListKind::kTuple))
    throw TemplateError(std::string("unhashable type: '") + key.type_name() + "'");
  if (value.depth() >= kMaxValueDepth) throw TemplateError("values are nested too deeply");
  depth = std::max(depth, value.depth() + 1);
  if (const Value* known = find(key)) {
    *const_cast<Value*>(known) = std::move(value);
    return;
  }
  if (key.is_text()) index_.emplace(key.text(), entries.size());
  entries.emplace_back(std::move(key), std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() == b.number();
    return a.integer() == b.integer();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (left != nullptr && right != nullptr && left != right)
    return left->kind == right->kind && left->kind != ListKind::kGenerator &&
           std::equal(left->items.begin(), left->items.end(), right->items.begin(),
                      right->items.end(), equal);
  const Dict* first = a.as_dict();
  const Dict* second = b.as_dict();
  if (first != nullptr && second != nullptr) {
    if (first->entries.size() != second->entries.size()) return false;
    for (const auto& [key, value] : first->entries) {
      const Value* other = second->find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  return a.identity() != nullptr && a.identity() == b.identity();
}

bool less(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw TemplateError(value->why_undefined());
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() < b.number();
    return a.integer() < b.integer();
  }
  if (a.is_text() && b.is_text()) return a.text() < b.text();  // UTF-8 sorts as code points do
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (left != nullptr && right != nullptr && left->kind == right->kind) {
    for (size_t i = 0; i < left->items.size() && i < right->items.size(); ++i)
      if (!equal(left->items[i], right->items[i])) return less(left->items[i], right->items[i]);
    return left->items.size() < right->items.size();
  }
  throw TemplateError(std::string("'<' not supported between instances of '") + a.type_name() +
                      "' and '" + b.type_name() + "'");
}

Value from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        throw TemplateError("an integer in the input is above 2^63 - 1");
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return json.get<std::string>();
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) dict->set(key, from_json(value));
      return dict;
    }
    default:
      return {};
  }
}

}  // namespace refrain::jinja
