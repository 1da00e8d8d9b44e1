#include "runtime/text/answer/qwen3_xml.h"

#include <utility>

#include "runtime/text/json_reader.h"

namespace refrain::text {
namespace {

using Json = nlohmann::json;

constexpr size_t kFunctionMarker = 1;
constexpr size_t kMaxName = 256;

// A schema's types between spaces; none where it names none.
std::string types_of(const Json& schema) {
  std::string types = " ";
  if (!schema.is_object() || !schema.contains("type")) return types;
  const Json& type = schema["type"];
  if (type.is_string()) types += type.get<std::string>() + " ";
  if (!type.is_array()) return types;
  for (const Json& item : type)
    if (item.is_string()) types += item.get<std::string>() + " ";
  return types;
}

bool has_type(const std::string& types, const char* name) {
  return types.find(std::string(" ") + name + " ") != std::string::npos;
}

// The text as JSON of one of the types, where it is that.
Json typed_value(std::string_view text, const std::string& types) {
  const std::string_view plain = trimmed(text);
  const bool any = types == " ";  // a schema that names no type
  if (plain == "null" || plain == "None") {
    if (any || !has_type(types, "string") || has_type(types, "null")) return nullptr;
  }
  if (has_type(types, "boolean") && (plain == "True" || plain == "False")) return plain == "True";
  if (!check_json_depth(plain, "")) return text;  // copied and printed level by level
  Json value = Json::parse(plain, nullptr, /*allow_exceptions=*/false);
  const bool fits = (any && !value.is_discarded()) ||
                    (has_type(types, "boolean") && value.is_boolean()) ||
                    (has_type(types, "integer") && value.is_number()) ||
                    (has_type(types, "number") && value.is_number()) ||
                    (has_type(types, "array") && value.is_array()) ||
                    (has_type(types, "object") && value.is_object());
  return fits ? value : Json(text);
}

std::string dump_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What stands between the quotes of a JSON string; the text may end inside a character.
std::string escaped(std::string_view text) {
  std::string json;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      const std::string quoted = Json(std::string(1, c)).dump();
      json += quoted.substr(1, quoted.size() - 2);
    } else {
      json += c;
    }
  }
  return json;
}

}  // namespace

Qwen3XmlParser::Qwen3XmlParser(const Json& tools)
    : MarkedCallParser({"<tool_call>", "<function="}), properties_(Json::object()) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const auto at = [](const Json& object, const char* name) {
      return object.is_object() && object.contains(name) ? object[name] : Json();
    };
    const Json function = at(tool, "function");
    const Json name = at(function, "name");
    if (name.is_string()) properties_[name] = at(at(function, "parameters"), "properties");
  }
}

void Qwen3XmlParser::open(size_t marker, AnswerEvents& /*out*/) {
  word_.expect({"<function="});
  name_.clear();
  state_ = marker == kFunctionMarker ? State::kName : State::kOpen;
}

// A value is taken whole, as far as it has come.
void Qwen3XmlParser::read_piece(std::string_view& text, AnswerEvents& out) {
  if (state_ != State::kValue) return MarkedCallParser::read_piece(text, out);
  std::string before;
  const auto found = value_end_.next(text, before);
  value(before, out);
  if (found) end_value(out);
}

bool Qwen3XmlParser::read(char c, AnswerEvents& out) {
  switch (state_) {
    case State::kOpen:
      return function(c, out);
    case State::kName:
    case State::kKey:
      return name(c, out);
    case State::kBody:
      return body(c, out);
    default:
      return close(c, out);
  }
}

bool Qwen3XmlParser::function(char c, AnswerEvents& out) {
  const ExpectedWord::Step step = word_.push(c);
  if (step == ExpectedWord::Step::kNo) return fail(out);
  take(c);
  if (step == ExpectedWord::Step::kMatch) state_ = State::kName;
  return true;
}

// The name of a function or of a parameter, up to the >.
bool Qwen3XmlParser::name(char c, AnswerEvents& out) {
  const bool function = state_ == State::kName;
  std::string& name = function ? name_ : key_;
  if (c == '\n' || c == '<' || name.size() == kMaxName) return fail(out);
  if (c != '>') {
    take(c);
    name += c;
    return true;
  }
  name = trimmed(name);
  if (name.empty()) return fail(out);
  take(c);
  if (function) {
    call_.begin(name, out);
    argue("{", out);
    first_ = true;
    word_.expect({"<parameter=", "</function>"});
    state_ = State::kBody;
  } else {
    begin_value(out);
  }
  return true;
}

bool Qwen3XmlParser::body(char c, AnswerEvents& out) {
  constexpr size_t kParameter = 0;
  const ExpectedWord::Step step = word_.push(c);
  if (step == ExpectedWord::Step::kNo) return fail(out);
  take(c);
  if (step == ExpectedWord::Step::kMore) return true;
  if (word_.which() == kParameter) {
    key_.clear();
    state_ = State::kKey;
    return true;
  }
  argue("}", out);
  call_.end(out);
  word_.expect({"</tool_call>"});
  state_ = State::kClose;
  return true;
}

bool Qwen3XmlParser::close(char c, AnswerEvents& out) {
  const ExpectedWord::Step step = word_.push(c);
  if (step == ExpectedWord::Step::kMore) return true;
  if (step == ExpectedWord::Step::kMatch) {
    end_reading();
    return true;
  }
  read_again(std::string(word_.taken()), out);
  return false;
}

void Qwen3XmlParser::begin_value(AnswerEvents& out) {
  const Json& known = properties_.contains(name_) ? properties_[name_] : Json();
  const bool declared = known.is_object() && known.contains(key_);
  types_ = declared ? types_of(known[key_]) : " string ";
  streams_ = types_ == " string ";
  argue((first_ ? "" : ", ") + dump_text(Json(key_)) + ": " + (streams_ ? "\"" : ""), out);
  first_ = false;
  value_.clear();
  at_start_ = true;
  state_ = State::kValue;
}

// The line breaks that begin and end a value are not part of it.
void Qwen3XmlParser::value(std::string_view text, AnswerEvents& out) {
  if (text.empty()) return;
  call_.take(text);
  if (std::exchange(at_start_, false) && text.front() == '\n') text.remove_prefix(1);
  value_ += text;
  if (!streams_) return;
  const bool line_break = value_.ends_with('\n');
  if (line_break) value_.pop_back();
  argue(escaped(value_), out);
  value_ = line_break ? "\n" : "";
}

void Qwen3XmlParser::end_value(AnswerEvents& out) {
  call_.take(value_end_.marker(0));
  if (streams_) {
    argue("\"", out);
  } else {
    if (value_.ends_with('\n')) value_.pop_back();
    argue(dump_text(typed_value(value_, types_)), out);
  }
  word_.expect({"<parameter=", "</function>"});
  state_ = State::kBody;
}

void Qwen3XmlParser::cut(AnswerEvents& out) {
  if (state_ == State::kClose) {
    out.content(word_.taken());
    return;
  }
  if (state_ == State::kValue) value(value_end_.flush(), out);
  fail(out);
}

}  // namespace refrain::text
