#include "runtime/server/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace refrain {
namespace {

// What a text would cost to parse, before it is parsed: nesting, members of one object, and bytes
// of memory.
struct JsonShape {
  int depth = 0;
  int members = 0;
  size_t bytes = 0;
};

constexpr int kMaxDepth = 64;
constexpr int kMaxOrderedMembers = 1024;
constexpr size_t kBytesPerByte = 16;
// Of a value in a list that grows; and of a list, an object or a member in the trees that are made
// of a chat: the body's, the template's input, the interpreter's values.
constexpr size_t kValueBytes = 2 * sizeof(Json);
constexpr size_t kNodeBytes = 240;

JsonShape measure(const std::string& text) {
  JsonShape shape;
  std::vector<int> open;  // commas so far of each open bracket
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      shape.bytes += kNodeBytes;
      open.push_back(c == '{' ? 1 : std::numeric_limits<int>::min());
      shape.depth = std::max(shape.depth, static_cast<int>(open.size()));
      if (shape.depth > kMaxDepth) return shape;
    } else if (c == ':') {
      shape.bytes += kNodeBytes;
    } else if (c == ',' && !open.empty()) {
      shape.bytes += kValueBytes;
      shape.members = std::max(shape.members, ++open.back());
    } else if ((c == ']' || c == '}') && !open.empty()) {
      open.pop_back();
    }
  }
  return shape;
}

// Takes token ids out while the text is parsed: a filter of nlohmann's parser, which calls it at
// each event and leaves out the values that it says no to.
class TokenTaker {
 public:
  TokenTaker(const char* name, TokenLists& lists) : name_(name), lists_(&lists) {}

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key && depth == 1) {
      named_ = parsed == name_;
      if (named_) *lists_ = {};  // of a member that is there twice, the last one counts
    }
    if (!named_) return true;
    if (depth == 1) list_ = event == Event::array_start;
    if (depth == 2 && event == Event::array_start && list_) {
      nested_ = true;
      lists_->nested.emplace_back();
    }
    if (depth == 2 && event == Event::array_end) nested_ = false;
    const bool flat = depth == 2 && list_;
    if (event != Event::value || !(flat || (depth == 3 && nested_))) return true;
    if (!parsed.is_number_unsigned()) return true;
    const auto number = parsed.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<TokenId>::max())) return true;
    (flat ? lists_->flat : lists_->nested.back()).push_back(static_cast<TokenId>(number));
    return false;
  }

 private:
  const char* name_;
  TokenLists* lists_;
  bool named_ = false;   // inside the member
  bool list_ = false;    // inside its list
  bool nested_ = false;  // inside a list of that
};

template <class Tree>
Result<Tree> parse_tree(const std::string& text, int max_members, JsonAllowance& allowance,
                        const typename Tree::parser_callback_t& filter = nullptr) {
  const JsonShape shape = measure(text);
  if (shape.depth > kMaxDepth) {
    return fail(ErrorCode::kInvalidArgument, "the JSON is nested deeper than {} levels", kMaxDepth);
  }
  if (shape.members > max_members) {
    return fail(ErrorCode::kInvalidArgument, "an object of the JSON has more than {} members",
                max_members);
  }
  const size_t above = shape.bytes - std::min(shape.bytes, kBytesPerByte * text.size());
  if (above > allowance.bytes) {
    return fail(ErrorCode::kInvalidArgument,
                "the JSON holds too many lists, objects and members for its {} bytes", text.size());
  }
  allowance.bytes -= above;
  try {
    return Tree::parse(text, filter);
  } catch (const Json::exception& error) {
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at …"
    const size_t bracket = what.find("] ");
    if (bracket != std::string::npos) what = what.substr(bracket + 2);
    return fail(ErrorCode::kInvalidArgument, "the body is not valid JSON: {}", what);
  }
}

}  // namespace

Result<Json> parse_json(const std::string& text) {
  JsonAllowance allowance;
  return parse_tree<Json>(text, std::numeric_limits<int>::max(), allowance);
}

Result<Json> parse_json(const std::string& text, const char* name, TokenLists& lists) {
  JsonAllowance allowance;
  return parse_tree<Json>(text, std::numeric_limits<int>::max(), allowance,
                          TokenTaker(name, lists));
}

Result<OrderedJson> parse_ordered_json(const std::string& text) {
  JsonAllowance allowance;
  return parse_ordered_json(text, allowance);
}

Result<OrderedJson> parse_ordered_json(const std::string& text, JsonAllowance& allowance) {
  return parse_tree<OrderedJson>(text, kMaxOrderedMembers, allowance);
}

std::string text_of(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

bool JsonFields::has(const char* name) const { return get(name) != nullptr; }

const Json* JsonFields::get(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void JsonFields::fail_on(const std::string& name, const std::string& message) {
  if (ok()) status_ = fail_field(name, "{} {}", name, message);
}

std::optional<bool> JsonFields::boolean(const char* name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    fail_on(name, "must be true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::integer(const char* name, int64_t least, int64_t most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const bool too_big = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (!value->is_number_integer() || too_big || value->get<int64_t>() < least ||
      value->get<int64_t>() > most) {
    fail_on(name, fmt::format("must be a whole number from {} to {}, got {}", least, most,
                              value->dump().substr(0, 40)));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::number(const char* name, double least, double most) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() < least ||
      value->get<double>() > most) {
    fail_on(name, fmt::format("must be a number from {} to {}, got {}", least, most,
                              value->dump().substr(0, 40)));
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<std::string> JsonFields::string(const char* name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    fail_on(name, "must be a string");
    return std::nullopt;
  }
  return value->get<std::string>();
}

}  // namespace refrain
