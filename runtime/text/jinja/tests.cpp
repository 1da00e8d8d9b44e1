// Tests: `value is name(arguments)`.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/unicode/unicode.h"

namespace refrain::jinja {
namespace {

using Test = bool (*)(const Value&, ArgumentReader&);
struct NamedTest {
  std::string_view name;
  Test test;
};

bool counts_as_sequence(const Value& value) {
  const List* list = value.as_list();
  return value.is_text() || value.as_dict() != nullptr || value.is_undefined() ||
         (list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple));
}

int64_t integer_of(const Value& value, std::string_view test) {
  if (!value.is_integer() && !value.is_bool())
    throw TemplateError(fmt::format("the test '{}' needs an integer", test));
  return value.integer();
}

bool divisible(const Value& value, const Value& by) {
  const int64_t divisor = integer_of(by, "divisibleby");
  if (divisor == 0) throw TemplateError("division by zero");
  return divisor == -1 || integer_of(value, "divisibleby") % divisor == 0;
}

bool same(const Value& value, const Value& other) {
  if (value.identity() != nullptr) return value.identity() == other.identity();
  return std::string_view(value.type_name()) == other.type_name() && equal(value, other);
}

const NamedTest kTests[] = {
    {"defined", [](const Value& v, ArgumentReader&) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v, ArgumentReader&) { return v.is_undefined(); }},
    {"none", [](const Value& v, ArgumentReader&) { return v.is_none(); }},
    {"true", [](const Value& v, ArgumentReader&) { return v.is_bool() && v.truthy(); }},
    {"false", [](const Value& v, ArgumentReader&) { return v.is_bool() && !v.truthy(); }},
    {"boolean", [](const Value& v, ArgumentReader&) { return v.is_bool(); }},
    {"string", [](const Value& v, ArgumentReader&) { return v.is_text(); }},
    {"number", [](const Value& v, ArgumentReader&) { return v.is_number(); }},
    {"integer", [](const Value& v, ArgumentReader&) { return v.is_integer(); }},
    {"float", [](const Value& v, ArgumentReader&) { return v.is_float(); }},
    {"mapping", [](const Value& v, ArgumentReader&) { return v.as_dict() != nullptr; }},
    {"sequence", [](const Value& v, ArgumentReader&) { return counts_as_sequence(v); }},
    {"iterable", [](const Value& v,
                    ArgumentReader&) { return counts_as_sequence(v) || v.as_list() != nullptr; }},
    {"callable", [](const Value& v, ArgumentReader&) { return v.as_function() != nullptr; }},
    {"escaped", [](const Value& v, ArgumentReader&) { return v.is_markup(); }},
    {"lower",
     [](const Value& v, ArgumentReader&) {
       return to_text(v) == text::to_lower(to_text(v)) && to_text(v) != text::to_upper(to_text(v));
     }},
    {"upper",
     [](const Value& v, ArgumentReader&) {
       return to_text(v) == text::to_upper(to_text(v)) && to_text(v) != text::to_lower(to_text(v));
     }},
    {"even", [](const Value& v, ArgumentReader&) { return integer_of(v, "even") % 2 == 0; }},
    {"odd", [](const Value& v, ArgumentReader&) { return integer_of(v, "odd") % 2 != 0; }},
    {"divisibleby",
     [](const Value& v, ArgumentReader& r) { return divisible(v, r.need(0, "num")); }},
    {"eq", [](const Value& v, ArgumentReader& r) { return equal(v, r.need(0, "other")); }},
    {"ne", [](const Value& v, ArgumentReader& r) { return !equal(v, r.need(0, "other")); }},
    {"lt", [](const Value& v, ArgumentReader& r) { return less(v, r.need(0, "other")); }},
    {"le", [](const Value& v, ArgumentReader& r) { return !less(r.need(0, "other"), v); }},
    {"gt", [](const Value& v, ArgumentReader& r) { return less(r.need(0, "other"), v); }},
    {"ge", [](const Value& v, ArgumentReader& r) { return !less(v, r.need(0, "other")); }},
    {"in", [](const Value& v, ArgumentReader& r) { return contains(r.need(0, "seq"), v); }},
    {"filter",
     [](const Value& v, ArgumentReader&) { return v.is_text() && is_known_filter(v.text()); }},
    {"test",
     [](const Value& v, ArgumentReader&) { return v.is_text() && is_known_test(v.text()); }},
    {"sameas", [](const Value& v, ArgumentReader& r) { return same(v, r.need(0, "other")); }},
};

constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"},          {"<", "lt"}, {"lessthan", "lt"},
    {"<=", "le"}, {">", "gt"},       {"greaterthan", "gt"}, {">=", "ge"}};

const NamedTest* find_test(std::string_view name) {
  for (const auto& [alias, meaning] : kAliases)
    if (alias == name) name = meaning;
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests),
                                [&](const NamedTest& test) { return test.name == name; });
  return it == std::end(kTests) ? nullptr : it;
}

}  // namespace

bool is_known_test(std::string_view name) { return find_test(name) != nullptr; }

bool apply_test(const std::string& name, const Value& input, Arguments& arguments) {
  const NamedTest* test = find_test(name);
  if (test == nullptr) throw TemplateError(fmt::format("no test named '{}'", name));
  ArgumentReader reader(test->name, arguments);
  const bool result = test->test(input, reader);
  reader.done();
  return result;
}

}  // namespace refrain::jinja
