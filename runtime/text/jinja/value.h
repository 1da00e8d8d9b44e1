#pragma once
// Values of the template language, with Python's meaning. A Value is cheap to copy (containers are
// shared); containers do not change once built, but for namespaces and used-up generators. Values
// belong to one rendering and its thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace refrain::jinja {

// Thrown inside this folder only; Template turns it into a Result's error.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;
struct Rendering;
struct Arguments;
struct List;
struct Dict;
struct Namespace;
struct Function;
struct Loop;

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct Text {
  std::string bytes;    // UTF-8
  bool markup = false;  // came through `safe`: what is added to it is escaped
};

class Value {
 public:
  Value() = default;  // none
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text, bool markup = false)
      : data_(std::make_shared<const Text>(Text{std::move(text), markup})) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}

  static Value undefined(std::string why);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value generator(std::vector<Value> items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // bool is not
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }

  const std::string& text() const { return text_ref().bytes; }
  bool is_markup() const { return is_text() && text_ref().markup; }
  int64_t integer() const;  // of a bool or an integer
  double number() const;    // of any number
  // Null where the value is something else.
  List* as_list() const { return pointer<std::shared_ptr<List>>(); }
  Dict* as_dict() const { return pointer<std::shared_ptr<Dict>>(); }
  Namespace* as_namespace() const { return pointer<std::shared_ptr<Namespace>>(); }
  const Function* as_function() const { return pointer<std::shared_ptr<const Function>>(); }
  Loop* as_loop() const { return pointer<std::shared_ptr<Loop>>(); }
  const std::string& why_undefined() const { return *std::get<Undefined>(data_).why; }
  std::shared_ptr<const Function> function() const {
    return std::get<std::shared_ptr<const Function>>(data_);
  }

  bool truthy() const;
  const char* type_name() const;  // Python's: "str", "dict", …
  uint32_t depth() const;         // nesting of containers
  const void* identity() const;

 private:
  const Text& text_ref() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  template <class P>
  typename P::element_type* pointer() const {
    const P* found = std::get_if<P>(&data_);
    return found != nullptr ? found->get() : nullptr;
  }

  std::variant<None, Undefined, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Function>, std::shared_ptr<Loop>>
      data_;
};

// kView: what dict.items() and its like give; kGenerator: what map, select and their like give,
// which can be gone through once.
enum class ListKind : uint8_t { kList, kTuple, kGenerator, kView };

struct List {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
  uint32_t depth = 1;
  const char* view_name = "dict_items";  // of a kView, as Python prints it
  // Of a kGenerator: what goes wrong when it is asked for more than `items`.
  std::string error_behind;
};

// Insertion-ordered. Keys: text, numbers, booleans, none, tuples of them.
struct Dict {
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);

  std::vector<std::pair<Value, Value>> entries;
  uint32_t depth = 1;

 private:
  std::unordered_map<std::string, size_t> index_;  // of text keys
};

struct Namespace {
  Dict attributes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Function {
  std::string name;
  std::function<Value(Rendering&, Arguments&)> call;
};

// `loop` inside a for.
struct Loop {
  std::vector<Value> items;
  size_t index0 = 0;
  uint32_t depth = 1;
  Value last_changed;  // of loop.changed()
  bool has_changed = false;
};

inline constexpr uint32_t kMaxValueDepth = 200;

bool equal(const Value& a, const Value& b);  // Python's ==
// Python's <; throws where Python would.
bool less(const Value& a, const Value& b);

std::string to_text(const Value& value);  // Python's str()
std::string to_repr(const Value& value);  // Python's repr()
std::string format_float(double number);  // Python's repr() of a float

Value from_json(const nlohmann::ordered_json& json);

}  // namespace refrain::jinja
