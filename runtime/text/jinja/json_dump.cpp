// tojson: Python's json.dumps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/text/jinja/builtins.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonOptions& options) : budget_(budget), options_(options) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int level) {
    budget_.charge_text(out_.size() > (size_t{1} << 20) ? out_.size() : 64);
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.truthy() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_float()) {
      out_ += number(value.number());
    } else if (value.is_text()) {
      write_text(value.text());
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict, level);
    } else if (const List* list = value.as_list();
               list != nullptr &&
               (list->kind == ListKind::kList || list->kind == ListKind::kTuple)) {
      write_list(*list, level);
    } else {
      throw TemplateError(
          fmt::format("Object of type {} is not JSON serializable", value.type_name()));
    }
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return format_float(value);
  }

  void new_line(int level) {
    if (!options_.indent) return;
    out_.push_back('\n');
    for (int i = 0; i < level; ++i) out_ += *options_.indent;
  }

  void write_list(const List& list, int level) {
    out_.push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += options_.item_separator;
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    if (!list.items.empty()) new_line(level);
    out_.push_back(']');
  }

  static std::string key_text(const Value& key) {
    if (key.is_text()) return key.text();
    if (key.is_none()) return "null";
    if (key.is_bool()) return key.truthy() ? "true" : "false";
    if (key.is_integer()) return std::to_string(key.integer());
    if (key.is_float()) return number(key.number());
    throw TemplateError(
        fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (options_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    out_.push_back('{');
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out_ += options_.item_separator;
      first = false;
      new_line(level + 1);
      write_text(key_text(entry->first));
      out_ += options_.key_separator;
      write(entry->second, level + 1);
    }
    if (!entries.empty()) new_line(level);
    out_.push_back('}');
  }

  void write_unit(uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); }

  void write_text(const std::string& text) {
    budget_.charge_text(text.size());
    out_.push_back('"');
    text::for_each_char(text, [&](char32_t c, std::string_view bytes) {
      switch (c) {
        case '"':
          out_ += "\\\"";
          return;
        case '\\':
          out_ += "\\\\";
          return;
        case '\n':
          out_ += "\\n";
          return;
        case '\r':
          out_ += "\\r";
          return;
        case '\t':
          out_ += "\\t";
          return;
        case '\b':
          out_ += "\\b";
          return;
        case '\f':
          out_ += "\\f";
          return;
        default:
          break;
      }
      if (c >= 0x20 && (!options_.ensure_ascii || c < 0x7F)) {
        out_ += bytes;
      } else if (c < 0x10000) {
        write_unit(c);
      } else {
        write_unit(0xD800 + ((c - 0x10000) >> 10));
        write_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
      }
    });
    out_.push_back('"');
  }

  Budget& budget_;
  const JsonOptions& options_;
  std::string out_;
};

}  // namespace

std::string to_json(Budget& budget, const Value& value, const JsonOptions& options) {
  return JsonWriter(budget, options).run(value);
}

}  // namespace refrain::jinja
