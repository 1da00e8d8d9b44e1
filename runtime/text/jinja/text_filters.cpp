// Filters on text, and conversions.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/unicode/unicode.h"

namespace refrain::jinja {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n' && text[i] != '\r') continue;
    lines.push_back(text.substr(begin, i - begin));
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
    begin = i + 1;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Value indent(FilterCall& call) {
  const Value width = call.reader.get(0, "width", int64_t{4});
  const bool first = call.reader.get(1, "first", false).truthy();
  const bool blank = call.reader.get(2, "blank", false).truthy();
  if (!width.is_text() && !width.is_integer())
    throw TemplateError("indent: 'width' must be an integer or a string");
  if (width.is_integer() && width.integer() > 1000)
    throw TemplateError("indent: 'width' is above 1000");
  const std::string space =
      width.is_text()
          ? width.text()
          : std::string(static_cast<size_t>(std::max<int64_t>(0, width.integer())), ' ');
  const std::string text = to_text(call.input) + "\n";
  const auto lines = lines_of(text);
  call.rendering.budget.charge_text(text.size() + lines.size() * space.size());
  std::string out = first ? space : std::string();
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += space;
    out += lines[i];
  }
  return out;
}

Value to_integer(FilterCall& call) {
  Value fallback = call.reader.get(0, "default", int64_t{0});
  const int64_t base = call.reader.integer(1, "base", 10);
  const Value& input = call.input;
  if (input.is_undefined()) throw TemplateError(input.why_undefined());
  if (input.is_float()) {
    if (!(std::abs(input.number()) < 9.2e18)) return fallback;
    return static_cast<int64_t>(input.number());
  }
  if (input.is_number()) return input.integer();
  if (!input.is_text()) return fallback;
  std::string text = strip(input.text(), nullptr, true, true);
  if (text.starts_with('+')) text = text.substr(1);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, static_cast<int>(base));
  if (error == std::errc() && at == end) return value;
  double number = 0;
  const auto [stop, float_error] = std::from_chars(text.data(), end, number);
  if (float_error == std::errc() && stop == end && std::abs(number) < 9.2e18)
    return static_cast<int64_t>(number);
  return fallback;
}

Value to_float(FilterCall& call) {
  Value fallback = call.reader.get(0, "default", 0.0);
  if (call.input.is_undefined()) throw TemplateError(call.input.why_undefined());
  if (call.input.is_number()) return call.input.number();
  if (!call.input.is_text()) return fallback;
  const std::string text = strip(call.input.text(), nullptr, true, true);
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() ? Value(number) : fallback;
}

// Each word begins with an upper-case letter; words begin behind white space, '-', '(', '{', '[',
// '<'.
std::string title_words(const std::string& text) {
  std::string out, word;
  const auto end_word = [&] {
    out += capitalize(word);
    word.clear();
  };
  for (const std::string& c : characters(text)) {
    const bool separates = std::string_view("-({[<").find(c) != std::string_view::npos ||
                           strip(c, nullptr, true, true).empty();
    if (separates) {
      end_word();
      out += c;
    } else {
      word += c;
    }
  }
  end_word();
  return out;
}

Value tojson(FilterCall& call) {
  JsonOptions options;
  options.ensure_ascii = call.reader.get(0, "ensure_ascii", false).truthy();
  const Value indent = call.reader.get(1, "indent", {});
  const Value separators = call.reader.get(2, "separators", {});
  options.sort_keys = call.reader.get(3, "sort_keys", false).truthy();
  if (indent.is_text()) {
    options.indent = indent.text();
  } else if (indent.is_integer() || indent.is_bool()) {
    if (indent.integer() > 64) throw TemplateError("tojson: 'indent' is above 64");
    options.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, indent.integer())), ' ');
  } else if (!indent.is_none()) {
    throw TemplateError("tojson: 'indent' must be an integer, a string or none");
  }
  if (options.indent) options.item_separator = std::string(",");
  if (const List* pair = separators.as_list()) {
    if (pair->items.size() != 2 || !pair->items[0].is_text() || !pair->items[1].is_text())
      throw TemplateError("tojson: 'separators' must be two strings");
    options.item_separator = pair->items[0].text();
    options.key_separator = pair->items[1].text();
  } else if (!separators.is_none()) {
    throw TemplateError("tojson: 'separators' must be two strings");
  }
  std::string text = to_json(call.rendering.budget, call.input, options);
  call.rendering.budget.charge_text(text.size());
  return text;
}

Value replace(FilterCall& call) {
  const std::string from = to_text(call.reader.need(0, "old"));
  const std::string to = to_text(call.reader.need(1, "new"));
  const Value count = call.reader.get(2, "count", {});
  if (!count.is_none() && !count.is_integer() && !count.is_bool())
    throw TemplateError("replace: 'count' must be an integer");
  if (call.input.is_markup())
    throw TemplateError("'replace' on a string marked safe is not supported");
  return replace_all(to_text(call.input), from, to, count.is_none() ? -1 : count.integer());
}

Value trim(FilterCall& call) {
  const Value chars = call.reader.get(0, "chars", {});
  if (!chars.is_none() && !chars.is_text()) throw TemplateError("trim: 'chars' must be a string");
  return Value(strip(to_text(call.input), chars.is_text() ? &chars.text() : nullptr, true, true),
               call.input.is_markup());
}

Value percent(FilterCall& call) {
  for (size_t i = 0; i < call.arguments.positional.size(); ++i) call.reader.find(i, "");
  const Value arguments = Value::tuple(call.arguments.positional);
  return format_percent(to_text(call.input), arguments);
}

int64_t word_count(std::string_view text) {
  int64_t words = 0;
  bool in_word = false;
  for (const std::string& c : characters(text)) {
    const bool word = strip(c, nullptr, true, true) == c &&
                      (static_cast<unsigned char>(c[0]) >= 0x80 ||
                       std::isalnum(static_cast<unsigned char>(c[0])) != 0 || c[0] == '_');
    if (word && !in_word) ++words;
    in_word = word;
  }
  return words;
}

Value round_number(FilterCall& call) {
  const int64_t precision = call.reader.integer(0, "precision", 0);
  const Value method = call.reader.get(1, "method", "common");
  if (!call.input.is_number()) throw TemplateError("round needs a number");
  if (std::abs(precision) > 15) throw TemplateError("round: 'precision' must be within 15");
  if (call.input.is_integer() && to_text(method) == "common") {
    if (precision < 0) throw TemplateError("round: a negative 'precision' needs a float");
    return call.input;
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = call.input.number() * scale;
  const std::string how = to_text(method);
  if (how == "ceil") return std::ceil(scaled) / scale;
  if (how == "floor") return std::floor(scaled) / scale;
  if (how != "common") throw TemplateError("round: 'method' must be common, ceil or floor");
  return std::nearbyint(scaled) / scale;
}

}  // namespace

bool text_filter(FilterCall& call, Value& result) {
  const std::string& name = call.name;
  const auto text = [&] { return to_text(call.input); };
  const bool markup = call.input.is_markup();
  if (name == "tojson") {
    result = tojson(call);
  } else if (name == "string") {
    result = call.input.is_text() ? call.input : Value(text());
  } else if (name == "safe") {
    result = Value(text(), true);
  } else if (name == "trim") {
    result = trim(call);
  } else if (name == "lower") {
    result = Value(text::to_lower(text()), markup);
  } else if (name == "upper") {
    result = Value(text::to_upper(text()), markup);
  } else if (name == "title") {
    result = Value(title_words(text()), markup);
  } else if (name == "capitalize") {
    result = Value(capitalize(text()), markup);
  } else if (name == "replace") {
    result = replace(call);
  } else if (name == "indent") {
    result = indent(call);
  } else if (name == "escape" || name == "e") {
    result = markup ? call.input : Value(escape_html(text()), true);
  } else if (name == "forceescape") {
    result = Value(escape_html(text()), true);
  } else if (name == "int") {
    result = to_integer(call);
  } else if (name == "float") {
    result = to_float(call);
  } else if (name == "abs") {
    if (!call.input.is_number()) throw TemplateError("abs needs a number");
    result = call.input.number() < 0 ? negative(call.input) : call.input;
  } else if (name == "round") {
    result = round_number(call);
  } else if (name == "format") {
    result = percent(call);
  } else if (name == "wordcount") {
    result = word_count(text());
  } else {
    return false;
  }
  return true;
}

}  // namespace refrain::jinja
