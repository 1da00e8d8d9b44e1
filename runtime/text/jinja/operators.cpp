#include "runtime/text/jinja/operators.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

const char* symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSub:
      return "-";
    case Operator::kMul:
      return "*";
    case Operator::kDiv:
      return "/";
    case Operator::kFloorDiv:
      return "//";
    case Operator::kMod:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void overflow() { throw TemplateError("an integer grows above 64 bits"); }
[[noreturn]] void division_by_zero() { throw TemplateError("division by zero"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) division_by_zero();
  if (a == std::numeric_limits<int64_t>::min() && b == -1) overflow();
  const int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
    if (result == 0 || (result == 1 && base == 1)) break;
    if (i > 64 && base == -1) return exponent % 2 == 0 ? int64_t{1} : int64_t{-1};
  }
  return result;
}

Value integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) overflow();
      return result;
    case Operator::kSub:
      if (__builtin_sub_overflow(a, b, &result)) overflow();
      return result;
    case Operator::kMul:
      if (__builtin_mul_overflow(a, b, &result)) overflow();
      return result;
    case Operator::kDiv:
      if (b == 0) division_by_zero();
      return static_cast<double>(a) / static_cast<double>(b);
    case Operator::kFloorDiv:
      return floor_divide(a, b);
    case Operator::kMod:
      return a - floor_divide(a, b) * b;
    default:
      return power(a, b);
  }
}

Value float_arithmetic(Operator op, double a, double b) {
  if (b == 0 && (op == Operator::kDiv || op == Operator::kFloorDiv || op == Operator::kMod))
    division_by_zero();
  switch (op) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSub:
      return a - b;
    case Operator::kMul:
      return a * b;
    case Operator::kDiv:
      return a / b;
    case Operator::kFloorDiv:
      return std::floor(a / b);
    case Operator::kMod:
      return a - std::floor(a / b) * b;
    default:
      return std::pow(a, b);
  }
}

Value repeat(Budget& budget, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(0, count));
  const List* list = value.as_list();
  const size_t size = list != nullptr ? list->items.size() * 16 : value.text().size();
  if (size != 0 && times > std::numeric_limits<size_t>::max() / size) overflow();
  budget.charge_text(size * times);
  if (list == nullptr) {
    std::string out;
    for (size_t i = 0; i < times && size > 0; ++i) out += value.text();
    return Value(std::move(out), value.is_markup());
  }
  std::vector<Value> items;
  for (size_t i = 0; i < times && size > 0; ++i)
    items.insert(items.end(), list->items.begin(), list->items.end());
  return list->kind == ListKind::kTuple ? Value::tuple(std::move(items))
                                        : Value::list(std::move(items));
}

Value add_text(Budget& budget, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  const auto part = [&](const Value& value) {
    return markup && !value.is_markup() ? escape_html(value.text()) : value.text();
  };
  std::string text = part(a) + part(b);
  budget.charge_text(text.size());
  return Value(std::move(text), markup);
}

// Characters `first` up to `last` of a text.
std::string part_of(const std::string& text, int64_t first, int64_t last) {
  size_t begin = 0;
  size_t end = 0;
  for (int64_t i = 0; i < last && end < text.size(); ++i) {
    if (i < first) begin = end + text::read_utf8(text, end).length;
    end += text::read_utf8(text, end).length;
  }
  return first < last ? text.substr(begin, end - begin) : std::string();
}

bool is_sequence(const Value& value) {
  const List* list = value.as_list();
  return value.is_text() ||
         (list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple));
}

}  // namespace

Value arithmetic(Budget& budget, Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw TemplateError(value->why_undefined());
  if (op == Operator::kMod && a.is_text()) {
    std::string text = format_percent(a.text(), b);
    budget.charge_text(text.size());
    return text;
  }
  if (a.is_number() && b.is_number())
    return a.is_float() || b.is_float() ? float_arithmetic(op, a.number(), b.number())
                                        : integer_arithmetic(op, a.integer(), b.integer());
  if (op == Operator::kAdd && a.is_text() && b.is_text()) return add_text(budget, a, b);
  const List* left = a.as_list();
  const List* right = b.as_list();
  if (op == Operator::kAdd && is_sequence(a) && left != nullptr && right != nullptr &&
      left->kind == right->kind) {
    budget.charge_text((left->items.size() + right->items.size()) * 16);
    std::vector<Value> items = left->items;
    items.insert(items.end(), right->items.begin(), right->items.end());
    return left->kind == ListKind::kTuple ? Value::tuple(std::move(items))
                                          : Value::list(std::move(items));
  }
  const bool a_integer = a.is_number() && !a.is_float();
  const bool b_integer = b.is_number() && !b.is_float();
  if (op == Operator::kMul && is_sequence(a) && b_integer) return repeat(budget, a, b.integer());
  if (op == Operator::kMul && is_sequence(b) && a_integer) return repeat(budget, b, a.integer());
  if (op == Operator::kAdd && a.is_text())
    throw TemplateError(fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
  throw TemplateError(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op),
                                  a.type_name(), b.type_name()));
}

Value negative(const Value& value) {
  if (value.is_undefined()) throw TemplateError(value.why_undefined());
  if (value.is_float()) return -value.number();
  if (!value.is_number())
    throw TemplateError(fmt::format("bad operand type for unary -: '{}'", value.type_name()));
  if (value.integer() == std::numeric_limits<int64_t>::min()) overflow();
  return -value.integer();
}

bool compare(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(a, b);
    case Operator::kNotEqual:
      return !equal(a, b);
    case Operator::kLess:
      return less(a, b);
    case Operator::kLessEqual:
      return !less(b, a);
    case Operator::kGreater:
      return less(b, a);
    case Operator::kGreaterEqual:
      return !less(a, b);
    case Operator::kIn:
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

bool contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    if (!item.is_text())
      throw TemplateError(
          fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    return container.text().find(item.text()) != std::string::npos;
  }
  if (const List* list = container.as_list())
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& other) { return equal(other, item); });
  if (const Dict* dict = container.as_dict()) return dict->find(item) != nullptr;
  throw TemplateError(fmt::format("argument of type '{}' is not iterable", container.type_name()));
}

Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop,
            const Value& step) {
  if (value.is_undefined()) return Value::undefined(value.why_undefined());
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is_none() && (!bound->is_number() || bound->is_float()))
      throw TemplateError("slice indices must be integers or none");
  if (!is_sequence(value))
    throw TemplateError(fmt::format("'{}' object cannot be sliced", value.type_name()));
  const List* list = value.as_list();
  const auto size =
      static_cast<int64_t>(list != nullptr ? list->items.size() : character_count(value.text()));
  const int64_t by = step.is_none() ? 1 : step.integer();
  if (by == 0) throw TemplateError("slice step cannot be zero");
  const auto bound = [&](const Value& given, int64_t fallback) {
    if (given.is_none()) return fallback;
    int64_t at = given.integer();
    if (at < 0) at = std::max<int64_t>(at, -size - 1) + size;
    return std::clamp<int64_t>(at, by < 0 ? -1 : 0, by < 0 ? size - 1 : size);
  };
  const int64_t first = bound(start, by > 0 ? 0 : size - 1);
  const int64_t last = bound(stop, by > 0 ? size : -1);
  if (list == nullptr && by == 1) {
    budget.charge(static_cast<uint64_t>(size) / 64);
    return Value(part_of(value.text(), first, last), value.is_markup());
  }
  std::vector<std::string> chars;
  if (list == nullptr) {
    budget.charge(static_cast<uint64_t>(size));  // before each becomes a string
    chars = characters(value.text());
  }
  budget.charge(static_cast<uint64_t>(size) / 4);
  std::string text;
  std::vector<Value> items;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) {
    if (list != nullptr) {
      items.push_back(list->items[static_cast<size_t>(i)]);
    } else {
      text += chars[static_cast<size_t>(i)];
    }
    if (by > size || by < -size) break;
  }
  if (list == nullptr) return Value(std::move(text), value.is_markup());
  return list->kind == ListKind::kTuple ? Value::tuple(std::move(items))
                                        : Value::list(std::move(items));
}

}  // namespace refrain::jinja
