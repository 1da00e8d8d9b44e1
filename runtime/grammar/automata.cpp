#include "runtime/grammar/automata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/json.h"

namespace refrain {
namespace {

using Schema = nlohmann::ordered_json;

constexpr uint64_t kMostRepetitions = 128;  // what the library unrolls in an automaton
// Each costs up to 15 ms of a processor to compile, for a vocabulary of 128k.
constexpr uint64_t kMostStates = 384;

// Nothing: it is no number that the library takes.
std::optional<uint64_t> length(const Schema& schema, const char* name, uint64_t otherwise) {
  const auto at = schema.find(name);
  if (at == schema.end()) return otherwise;
  if (!at->is_number_unsigned()) return std::nullopt;
  return at->get<uint64_t>();
}

bool allows_strings(const Schema& types) {
  return types == "string" ||
         (types.is_array() && std::find(types.begin(), types.end(), "string") != types.end());
}

Schema pattern(uint64_t least, const std::string& most) {
  return fmt::format("^.{{{},{}}}$", least, most);
}

// Characters that JSON would have to escape are in no such string, with and without a pattern.
void write_lengths_as_pattern(Schema& schema) {
  const bool least_given = schema.contains("minLength"), most_given = schema.contains("maxLength");
  if (!(least_given || most_given) || !allows_strings(schema.value("type", Schema()))) return;
  for (const char* name : {"pattern", "format", "$ref", "const", "enum", "anyOf", "oneOf", "allOf"})
    if (schema.contains(name)) return;
  const auto least = length(schema, "minLength", 0), most = length(schema, "maxLength", UINT64_MAX);
  if (!least || !most || *least > *most || *least >= kMostRepetitions) return;
  if (!most_given || *most <= kMostRepetitions) {
    schema["pattern"] = pattern(*least, most_given ? std::to_string(*most) : "");
  } else if (schema["type"] == "string") {
    // Longer ones are counted, which takes no automaton to be fast.
    const Schema shorter = {{"type", "string"},
                            {"pattern", pattern(*least, std::to_string(kMostRepetitions - 1))}};
    const Schema longer = {
        {"type", "string"}, {"minLength", kMostRepetitions}, {"maxLength", *most}};
    schema["anyOf"] = {shorter, longer};
    schema.erase("type");
  } else {
    return;
  }
  schema.erase("minLength");
  schema.erase("maxLength");
}

void write_patterns(Schema& schema) {
  if (!schema.is_object()) return;
  for (auto& [name, value] : schema.items()) {
    if (value.is_object() && (name == "properties" || name == "patternProperties" ||
                              name == "$defs" || name == "definitions")) {
      for (Schema& member : value) write_patterns(member);
    } else if (value.is_array() &&
               (name == "anyOf" || name == "oneOf" || name == "allOf" || name == "prefixItems")) {
      for (Schema& one : value) write_patterns(one);
    } else if (name == "items" || name == "additionalProperties" || name == "unevaluatedItems" ||
               name == "unevaluatedProperties" || name == "propertyNames") {
      if (name == "propertyNames" && value.is_object() && !value.contains("type"))
        value["type"] = "string";
      write_patterns(value);
    }
  }
  write_lengths_as_pattern(schema);
}

// Of "{m}", "{m,}" or "{m,n}" how many times at most, where an unbounded one is `m` and a loop;
// `at` moves from the brace to the other one. 0: it is none of them.
uint64_t most_repetitions(std::string_view regex, size_t& at) {
  const size_t end = regex.find('}', at);
  if (end == std::string_view::npos) return 0;
  const char *from = regex.data() + at + 1, *to = regex.data() + end;
  uint64_t most = 0;
  auto read = std::from_chars(from, to, most);
  if (read.ec == std::errc() && read.ptr + 1 < to && *read.ptr == ',')
    read = std::from_chars(read.ptr + 1, to, most);
  else if (read.ptr + 1 == to && *read.ptr == ',')
    ++read.ptr;
  at = end;
  return read.ec == std::errc() && read.ptr == to ? std::max<uint64_t>(most, 1) : 0;
}

// About how many states its automaton has; more than kMostStates also where the text is no regular
// expression.
uint64_t count_states(std::string_view regex) {
  constexpr uint64_t kTooMany = kMostStates + 1;
  std::vector<uint64_t> open = {0};  // what was counted of each group that is open
  uint64_t last = 0;                 // of the part that would be repeated, and counted already
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '(') {
      open.push_back(0);
    } else if (regex[i] == ')' && open.size() > 1) {
      last = open.back();
      open.pop_back();
      open.back() += last;
    } else if (regex[i] == '{') {
      const uint64_t most = most_repetitions(regex, i);
      if (most == 0 || most > kMostRepetitions) return kTooMany;
      open.back() += last * (most - 1);
      last *= most;
    } else {
      if (regex[i] == '[')
        while (i < regex.size() && regex[i] != ']') i += regex[i] == '\\' ? 2 : 1;
      else if (regex[i] == '\\')
        ++i;
      last = 1;
      ++open.back();
    }
    if (open.back() > kMostStates) return kTooMany;
  }
  return open.size() == 1 ? open.back() : kTooMany;
}

}  // namespace

std::string with_patterns_for_lengths(const std::string& schema) {
  if (schema.find("Length") == std::string::npos) return schema;
  const Schema given = Schema::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (given.is_discarded()) return schema;
  Schema written = given;
  write_patterns(written);
  return written == given ? schema : written.dump();
}

std::string automaton_grammar(const std::string& regex) {
  if (count_states(regex) > kMostStates) return {};
  return fmt::format("root ::= Regex({})", Schema(regex).dump());
}

}  // namespace refrain
