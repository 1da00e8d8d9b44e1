// Tests: `value is name(arguments)`.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/unicode/unicode.h"

namespace refrain::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, ArgumentReader&);
struct NamedTest {
  std::string_view name;
  Test test;
};

bool is_sequence(const Value& value) {
  const List* list = value.as_list();
  return value.is_text() || value.as_dict() != nullptr || value.is_undefined() ||
         (list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple));
}

int64_t integer_of(const Value& value, std::string_view test) {
  if (!value.is_integer() && !value.is_bool())
    throw TemplateError(fmt::format("the test '{}' needs an integer", test));
  return value.integer();
}

#define REFRAIN_TEST_BODY \
  [](Interpreter&, const Value& v, [[maybe_unused]] ArgumentReader& r) -> bool

const NamedTest kTests[] = {{"defined", REFRAIN_TEST_BODY{return !v.is_undefined();
}  // namespace
}  // namespace refrain::jinja
, {"undefined", REFRAIN_TEST_BODY{return v.is_undefined();
}
}
, {"none", REFRAIN_TEST_BODY{return v.is_none();
}
}
, {"true", REFRAIN_TEST_BODY{return v.is_bool() && v.truthy();
}
}
, {"false", REFRAIN_TEST_BODY{return v.is_bool() && !v.truthy();
}
}
, {"boolean", REFRAIN_TEST_BODY{return v.is_bool();
}
}
, {"string", REFRAIN_TEST_BODY{return v.is_text();
}
}
, {"number", REFRAIN_TEST_BODY{return v.is_number();
}
}
, {"integer", REFRAIN_TEST_BODY{return v.is_integer();
}
}
, {"float", REFRAIN_TEST_BODY{return v.is_float();
}
}
, {"mapping", REFRAIN_TEST_BODY{return v.as_dict() != nullptr;
}
}
, {"sequence", REFRAIN_TEST_BODY{return is_sequence(v);
}
}
, {"iterable", REFRAIN_TEST_BODY{return is_sequence(v) || v.as_list() != nullptr;
}
}
, {"callable", REFRAIN_TEST_BODY{return v.as_function() != nullptr;
}
}
, {"escaped", REFRAIN_TEST_BODY{return v.is_markup();
}
}
, {"lower", REFRAIN_TEST_BODY{return to_text(v) == text::to_lower(to_text(v)) &&
                                     to_text(v) != text::to_upper(to_text(v));
}
}
, {"upper", REFRAIN_TEST_BODY{return to_text(v) == text::to_upper(to_text(v)) &&
                                     to_text(v) != text::to_lower(to_text(v));
}
}
, {"even", REFRAIN_TEST_BODY{return integer_of(v, "even") % 2 == 0;
}
}
, {"odd", REFRAIN_TEST_BODY{return integer_of(v, "odd") % 2 != 0;
}
}
, {"divisibleby", REFRAIN_TEST_BODY{const int64_t by = integer_of(r.need(0, "num"), "divisibleby");
if (by == 0) throw TemplateError("division by zero");
return by == -1 || integer_of(v, "divisibleby") % by == 0;
}
}
, {"eq", REFRAIN_TEST_BODY{return equal(v, r.need(0, "other"));
}
}
, {"ne", REFRAIN_TEST_BODY{return !equal(v, r.need(0, "other"));
}
}
, {"lt", REFRAIN_TEST_BODY{return less(v, r.need(0, "other"));
}
}
, {"le", REFRAIN_TEST_BODY{return !less(r.need(0, "other"), v);
}
}
, {"gt", REFRAIN_TEST_BODY{return less(r.need(0, "other"), v);
}
}
, {"ge", REFRAIN_TEST_BODY{return !less(v, r.need(0, "other"));
}
}
, {"in", REFRAIN_TEST_BODY{return contains(r.need(0, "seq"), v);
}
}
, {"filter", REFRAIN_TEST_BODY{return v.is_text() && is_known_filter(v.text());
}
}
, {"test", REFRAIN_TEST_BODY{return v.is_text() && is_known_test(v.text());
}
}
, {"sameas", REFRAIN_TEST_BODY{const Value& other = r.need(0, "other");
if (v.identity() != nullptr) return v.identity() == other.identity();
return std::string_view(v.type_name()) == other.type_name() && equal(v, other);
}
}
,
}
;

#undef REFRAIN_TEST_BODY

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

bool Interpreter::apply_test(const std::string& name, const Value& input, Arguments& arguments) {
  const NamedTest* test = find_test(name);
  if (test == nullptr) throw TemplateError(fmt::format("no test named '{}'", name));
  ArgumentReader reader(test->name, arguments);
  const bool result = test->test(*this, input, reader);
  reader.done();
  return result;
}

}  // namespace refrain::jinja
