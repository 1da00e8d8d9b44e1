// Methods of strings, as Python's str has them.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/jinja/access.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

constexpr std::string_view kSupported[] = {
    "capitalize",   "count",   "endswith", "find",       "format",     "index",
    "isalnum",      "isalpha", "isdigit",  "islower",    "isspace",    "isupper",
    "join",         "ljust",   "lower",    "lstrip",     "partition",  "removeprefix",
    "removesuffix", "replace", "rfind",    "rindex",     "rjust",      "rpartition",
    "rsplit",       "rstrip",  "split",    "splitlines", "startswith", "strip",
    "title",        "upper",   "zfill",    "center",     "isnumeric",  "isdecimal"};
constexpr std::string_view kUnsupported[] = {
    "casefold",    "encode",  "expandtabs", "format_map", "isascii",  "isidentifier",
    "isprintable", "istitle", "maketrans",  "swapcase",   "translate"};

// Every part is a value of its own: without a charge a long text would become gigabytes.
Value texts(Budget& budget, const std::vector<std::string>& parts) {
  budget.charge(parts.size());
  std::vector<Value> items(parts.begin(), parts.end());
  return Value::list(std::move(items));
}

// Bytes from `at` on that are white space, or that are none.
size_t run_length(std::string_view text, size_t at, bool space) {
  size_t end = at;
  while (end < text.size()) {
    const text::Utf8Unit unit = text::read_utf8(text, end);
    const char32_t c = unit.code_point;
    if ((text::is_white_space(c) || (c >= 0x1C && c <= 0x1F)) != space) break;
    end += unit.length;
  }
  return end - at;
}

std::vector<std::string> split_spaces(std::string_view text, int64_t most) {
  std::vector<std::string> parts;
  for (size_t at = run_length(text, 0, true); at < text.size(); at += run_length(text, at, true)) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(text.substr(at));
      break;
    }
    const size_t length = run_length(text, at, false);
    parts.emplace_back(text.substr(at, length));
    at += length;
  }
  return parts;
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator, int64_t most,
                                  bool from_right) {
  if (separator.empty()) throw TemplateError("empty separator");
  std::vector<std::string> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t hit = from_right ? text.rfind(separator) : text.find(separator);
    if (hit == std::string_view::npos) break;
    if (from_right) {
      parts.emplace_back(text.substr(hit + separator.size()));
      text = text.substr(0, hit);
    } else {
      parts.emplace_back(text.substr(0, hit));
      text.remove_prefix(hit + separator.size());
    }
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Budget& budget, const std::string& text, ArgumentReader& reader, bool from_right) {
  const Value separator = reader.get(0, "sep", {});
  const int64_t most = reader.integer(1, "maxsplit", -1);
  if (!separator.is_none() && !separator.is_text())
    throw TemplateError("split: 'sep' must be a string or none");
  if (separator.is_text()) return texts(budget, split_at(text, separator.text(), most, from_right));
  if (from_right && most >= 0)
    throw TemplateError("rsplit at white space with 'maxsplit' is not supported");
  return texts(budget, split_spaces(text, most));
}

Value split_lines(Budget& budget, std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const text::Utf8Unit unit = text::read_utf8(text, i);
    const char32_t c = unit.code_point;
    size_t end = i + unit.length;
    if ((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
        c == 0x2029) {
      if (c == '\r' && end < text.size() && text[end] == '\n') ++end;
      lines.emplace_back(text.substr(begin, (keep_ends ? end : i) - begin));
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return texts(budget, lines);
}

bool begins_or_ends(const std::string& text, const Value& affix, bool begins) {
  if (const List* list = affix.as_list(); list != nullptr && list->kind == ListKind::kTuple)
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& one) { return begins_or_ends(text, one, begins); });
  if (!affix.is_text())
    throw TemplateError(fmt::format("{} first arg must be str or a tuple of str, not {}",
                                    begins ? "startswith" : "endswith", affix.type_name()));
  return begins ? text.starts_with(affix.text()) : text.ends_with(affix.text());
}

template <class Test>
bool all_chars(const std::string& text, Test test) {
  bool all = !text.empty();
  text::for_each_char(text,
                      [&](char32_t c, std::string_view bytes) { all = all && test(c, bytes); });
  return all;
}

bool is_letter(char32_t c, std::string_view) {
  return text::is_word_char(c) && !text::is_numeric(c) && !text::is_mark(c) && c != '_';
}

Value classify(const std::string& name, const std::string& text) {
  if (name == "isspace")
    return all_chars(text, [](char32_t c, auto) { return text::is_white_space(c); });
  if (name == "isalpha") return all_chars(text, is_letter);
  if (name == "isalnum")
    return all_chars(text,
                     [](char32_t c, auto b) { return is_letter(c, b) || text::is_numeric(c); });
  if (name == "islower" || name == "isupper") {
    const std::string lower = text::to_lower(text);
    const std::string upper = text::to_upper(text);
    return lower != upper && text == (name == "islower" ? lower : upper);
  }
  return all_chars(text, [](char32_t c, auto) { return text::is_numeric(c); });
}

Value find(const std::string& name, const std::string& text, ArgumentReader& reader) {
  const std::string part = reader.text(0, "sub");
  const size_t hit = name[0] == 'r' ? text.rfind(part) : text.find(part);
  if (hit != std::string::npos)
    return static_cast<int64_t>(character_count(std::string_view(text).substr(0, hit)));
  if (name.ends_with("index")) throw TemplateError("substring not found");
  return int64_t{-1};
}

Value partition(const std::string& text, const std::string& separator, bool from_right) {
  if (separator.empty()) throw TemplateError("empty separator");
  const size_t hit = from_right ? text.rfind(separator) : text.find(separator);
  if (hit == std::string::npos)
    return from_right ? Value::tuple({"", "", text}) : Value::tuple({text, "", ""});
  return Value::tuple({text.substr(0, hit), separator, text.substr(hit + separator.size())});
}

Value pad(Budget& budget, const std::string& name, const std::string& text,
          ArgumentReader& reader) {
  const bool zeros = name == "zfill";
  const int64_t width = reader.integer(0, "width", 0);
  const std::string fill = zeros ? "0" : to_text(reader.get(1, "fillchar", " "));
  const auto size = static_cast<int64_t>(character_count(text));
  if (width <= size) return text;
  budget.charge_text(static_cast<size_t>(width) * fill.size());
  const auto missing = static_cast<size_t>(width - size);
  size_t left = name == "ljust" ? 0 : missing;
  if (name == "center") left = missing / 2 + (missing & static_cast<size_t>(width) & 1U);
  const size_t sign = zeros && (text.starts_with('-') || text.starts_with('+')) ? 1 : 0;
  std::string out = text.substr(0, sign);
  for (size_t i = 0; i < left; ++i) out += fill;
  out += text.substr(sign);
  for (size_t i = left; i < missing; ++i) out += fill;
  return out;
}

Value count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  if (part.empty()) return static_cast<int64_t>(character_count(text)) + 1;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

Value join(Budget& budget, const std::string& text, const Value& parts) {
  std::string out;
  bool first = true;
  for (const Value& part : iterate(budget, parts)) {
    if (!part.is_text())
      throw TemplateError(fmt::format("join: expected str, {} found", part.type_name()));
    if (!first) out += text;
    first = false;
    out += part.text();
    budget.charge_text(out.size());
  }
  return out;
}

Value strip_call(const std::string& name, const std::string& text, ArgumentReader& reader) {
  const Value chars = reader.get(0, "chars", {});
  if (!chars.is_none() && !chars.is_text()) throw TemplateError(name + " arg must be none or str");
  return strip(text, chars.is_text() ? &chars.text() : nullptr, name != "rstrip", name != "lstrip");
}

Value call_method(Budget& budget, const std::string& name, const std::string& text,
                  Arguments& arguments, ArgumentReader& reader) {
  if (name == "format") return format_braces(text, arguments);
  if (name == "split" || name == "rsplit") return split(budget, text, reader, name == "rsplit");
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip_call(name, text, reader);
  if (name == "startswith" || name == "endswith")
    return begins_or_ends(text, reader.need(0, "prefix"), name == "startswith");
  if (name == "replace") {
    const std::string from = reader.text(0, "old");
    const std::string to = reader.text(1, "new");
    return replace_all(text, from, to, reader.integer(2, "count", -1));
  }
  if (name == "lower") return text::to_lower(text);
  if (name == "upper") return text::to_upper(text);
  if (name == "title") return title(text);
  if (name == "capitalize") return capitalize(text);
  if (name == "splitlines")
    return split_lines(budget, text, reader.get(0, "keepends", false).truthy());
  if (name == "join") return join(budget, text, reader.need(0, "iterable"));
  if (name == "count") return count(text, reader.text(0, "sub"));
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string affix = reader.text(0, "prefix");
    const bool front = name == "removeprefix";
    if (!(front ? text.starts_with(affix) : text.ends_with(affix))) return text;
    return front ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size());
  }
  if (name == "partition" || name == "rpartition")
    return partition(text, reader.text(0, "sep"), name == "rpartition");
  if (name == "zfill" || name == "ljust" || name == "rjust" || name == "center")
    return pad(budget, name, text, reader);
  if (name.ends_with("find") || name.ends_with("index")) return find(name, text, reader);
  return classify(name, text);
}

}  // namespace

std::optional<Value> text_method(const Value& object, const std::string& name) {
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (has(kUnsupported))
    throw TemplateError(fmt::format("the string method '{}' is not supported", name));
  if (!has(kSupported)) return std::nullopt;
  auto method = std::make_shared<Function>();
  method->name = name;
  method->call = [object, name](Rendering& rendering, Arguments& arguments) {
    Budget& budget = rendering.budget;
    const std::string& text = object.text();
    budget.charge_text(text.size());
    if (object.is_markup() && name != "startswith" && name != "endswith")
      throw TemplateError(fmt::format("'{}' on a string marked safe is not supported", name));
    ArgumentReader reader(name, arguments);
    Value result = call_method(budget, name, text, arguments, reader);
    if (name != "format") reader.done();
    if (result.is_text()) budget.charge_text(result.text().size());
    return result;
  };
  return Value(std::shared_ptr<const Function>(std::move(method)));
}

}  // namespace refrain::jinja
