// Values as Python writes them: str() and repr().
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "runtime/text/jinja/value.h"
#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

void repr_text(const std::string& text, std::string& out) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  out.push_back(quote);
  text::for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (text::is_printable(c)) {
      out += bytes;
    } else if (c <= 0xFF) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c <= 0xFFFF) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  });
  out.push_back(quote);
}

void repr_value(const Value& value, std::string& out);

void repr_items(const std::vector<Value>& items, std::string& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    repr_value(items[i], out);
  }
}

void repr_list(const List& list, std::string& out) {
  const bool tuple = list.kind == ListKind::kTuple;
  if (list.kind == ListKind::kGenerator)
    throw TemplateError("a generator cannot be written as text; use | list");
  if (list.kind == ListKind::kView) out += fmt::format("{}(", list.view_name);
  out += tuple ? "(" : "[";
  repr_items(list.items, out);
  if (tuple && list.items.size() == 1) out.push_back(',');
  out += tuple ? ")" : "]";
  if (list.kind == ListKind::kView) out += ")";
}

void repr_value(const Value& value, std::string& out) {
  if (value.is_markup()) {
    out += "Markup(";
    repr_text(value.text(), out);
    out += ")";
  } else if (value.is_text()) {
    repr_text(value.text(), out);
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (const List* list = value.as_list()) {
    repr_list(*list, out);
  } else if (const Dict* dict = value.as_dict()) {
    out += "{";
    for (size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out += ", ";
      repr_value(dict->entries[i].first, out);
      out += ": ";
      repr_value(dict->entries[i].second, out);
    }
    out += "}";
  } else {
    out += to_text(value);
  }
}

}  // namespace

std::string format_float(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16)
    return scientific.substr(0, e) +
           fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed).ptr;
  std::string text(buffer, fixed);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string to_repr(const Value& value) {
  std::string out;
  repr_value(value, out);
  return out;
}

std::string to_text(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truthy() ? "True" : "False";
  if (value.is_integer()) return std::to_string(value.integer());
  if (value.is_float()) return format_float(value.number());
  if (value.as_list() != nullptr || value.as_dict() != nullptr) return to_repr(value);
  throw TemplateError(std::string("a ") + value.type_name() + " cannot be written as text");
}

}  // namespace refrain::jinja
