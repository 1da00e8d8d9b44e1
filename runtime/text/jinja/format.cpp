// str.format and the % operator on strings: the parts templates use.
#include <fmt/format.h>

#include <charconv>

#include "runtime/text/jinja/builtins.h"

namespace refrain::jinja {
namespace {

constexpr size_t kMaxWidth = 1000;
constexpr size_t kMaxFormatted = size_t{64} << 20;

[[noreturn]] void unsupported(std::string_view spec) {
  throw TemplateError(fmt::format("the format '{}' is not supported", spec));
}

struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', type = '\0';
  size_t width = 0;
  int precision = -1;
};

size_t read_number(std::string_view text, size_t& at) {
  size_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + static_cast<size_t>(text[at] - '0');
    if (value > kMaxWidth) throw TemplateError("a format's width or precision is too large");
  }
  return value;
}

// [[fill]align][sign][0][width][.precision][type]; `text` is all of it.
Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  if (is_align(1) && static_cast<unsigned char>(text[0]) < 0x80) {
    spec.fill = text.substr(0, 1);
    spec.align = text[1];
    at = 2;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' '))
    spec.sign = text[at++];
  if (at < text.size() && text[at] == '0') {
    if (spec.align == '\0') spec.align = '=';
    spec.fill = "0";
    ++at;
  }
  spec.width = read_number(text, at);
  if (at < text.size() && text[at] == '.')
    spec.precision = static_cast<int>(read_number(text, ++at));
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) unsupported(text);
  return spec;
}

std::string digits_of(const Value& value, const Spec& spec, std::string_view text) {
  const bool as_float =
      std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
  if (!as_float && !value.is_float()) {
    switch (spec.type) {
      case '\0':
      case 'd':
        return std::to_string(value.integer());
      case 'x':
        return fmt::format("{:x}", value.integer());
      case 'X':
        return fmt::format("{:X}", value.integer());
      case 'o':
        return fmt::format("{:o}", value.integer());
      case 'b':
        return fmt::format("{:b}", value.integer());
      default:
        unsupported(text);
    }
  }
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case '\0':
      if (spec.precision >= 0) unsupported(text);
      return format_float(value.number());
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", value.number(), precision);
    case 'e':
      return fmt::format("{:.{}e}", value.number(), precision);
    case 'g':
      return fmt::format("{:.{}g}", value.number(), precision);
    case '%':
      return fmt::format("{:.{}f}%", value.number() * 100, precision);
    default:
      unsupported(text);
  }
}

std::string format_value(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  Spec spec = parse_spec(text);
  std::string body;
  char align = spec.align;
  if (value.is_number() && !(value.is_bool() && spec.type == '\0')) {
    if (spec.type == 's') unsupported(text);
    body = digits_of(value, spec, text);
    if (spec.sign != '-' && !body.starts_with('-')) body.insert(0, 1, spec.sign);
    if (align == '\0') align = '>';
  } else {
    if ((spec.type != '\0' && spec.type != 's') || align == '=' || spec.sign != '-')
      unsupported(text);
    body = to_text(value);
    if (spec.precision >= 0) {
      auto chars = characters(body);
      chars.resize(std::min(chars.size(), static_cast<size_t>(spec.precision)));
      body.clear();
      for (const auto& c : chars) body += c;
    }
    if (align == '\0') align = '<';
  }
  const size_t size = character_count(body);
  if (size >= spec.width) return body;
  const size_t missing = spec.width - size;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const size_t sign = align == '=' && (body[0] == '-' || body[0] == '+' || body[0] == ' ') ? 1 : 0;
  std::string out = body.substr(0, sign);
  for (size_t i = 0; i < left; ++i) out += spec.fill;
  out += body.substr(sign);
  for (size_t i = left; i < missing; ++i) out += spec.fill;
  return out;
}

const Value& field(std::string_view name, const Arguments& arguments, size_t& next) {
  if (name.find_first_of(".[") != std::string_view::npos) unsupported(name);
  size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (name.empty()) index = next++;
  if (name.empty() || (error == std::errc() && end == name.data() + name.size())) {
    if (index >= arguments.positional.size())
      throw TemplateError("format: too few arguments for the fields");
    return arguments.positional[index];
  }
  for (const auto& [key, value] : arguments.named)
    if (key == name) return value;
  throw TemplateError(fmt::format("format: there is no argument '{}'", name));
}

void check_size(const std::string& out) {
  if (out.size() > kMaxFormatted) throw TemplateError("formatting makes too long a text");
}

}  // namespace

std::string format_braces(std::string_view format, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out.push_back(c);
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {  // {{ and }} are braces
      out.push_back(c);
      ++i;
      continue;
    }
    const size_t close = format.find('}', i);
    if (c == '}' || close == std::string_view::npos)
      throw TemplateError("format: a single brace in the format string");
    std::string_view body = format.substr(i + 1, close - i - 1);
    if (body.find('{') != std::string_view::npos) unsupported(format);
    std::string_view spec;
    if (const size_t colon = body.find(':'); colon != std::string_view::npos) {
      spec = body.substr(colon + 1);
      body = body.substr(0, colon);
    }
    bool repr = false;
    if (const size_t mark = body.find('!'); mark != std::string_view::npos) {
      repr = body.substr(mark) == "!r";
      if (!repr && body.substr(mark) != "!s") unsupported(body);
      body = body.substr(0, mark);
    }
    const Value& value = field(body, arguments, next);
    out += format_value(repr ? Value(to_repr(value)) : value, spec);
    check_size(out);
    i = close;
  }
  return out;
}

std::string format_percent(std::string_view format, const Value& arguments) {
  const List* list = arguments.as_list();
  const bool tuple = list != nullptr && list->kind == ListKind::kTuple;
  size_t next = 0;
  const auto take = [&]() -> const Value& {
    if (next >= (tuple ? list->items.size() : 1))
      throw TemplateError("not enough arguments for format string");
    return tuple ? list->items[next++] : (++next, arguments);
  };
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    const size_t end = format.find_first_not_of("0123456789.+- ", i + 1);
    if (end == std::string_view::npos) throw TemplateError("incomplete format");
    const std::string_view flags = format.substr(i + 1, end - i - 1);
    const char type = format[end];
    i = end;
    if (type == '%' && flags.empty()) {
      out.push_back('%');
      continue;
    }
    if (std::string_view("sdifxXr").find(type) == std::string_view::npos || flags.starts_with('-'))
      unsupported(format);
    const Value& value = take();
    if (type == 's' || type == 'r') {
      if (!flags.empty()) unsupported(format);
      out += type == 's' ? to_text(value) : to_repr(value);
    } else {
      if (!value.is_number()) throw TemplateError("a number is required by the format string");
      const bool integer = type == 'd' || type == 'i';
      const Value number =
          integer && value.is_float() ? Value(static_cast<int64_t>(value.number())) : value;
      out += format_value(number.is_bool() ? Value(number.integer()) : number,
                          std::string(flags) + (integer ? 'd' : type));
    }
    check_size(out);
  }
  if (next < (tuple ? list->items.size() : 1) && arguments.as_dict() == nullptr)
    throw TemplateError("not all arguments converted during string formatting");
  return out;
}

}  // namespace refrain::jinja
