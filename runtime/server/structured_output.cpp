#include "runtime/server/structured_output.h"

#include <vector>

#include "runtime/grammar/grammar.h"
#include "runtime/grammar/schema_check.h"

namespace refrain {
namespace {

Result<std::string> bounded(const std::string& field, std::string source) {
  if (source.size() <= kMaxGrammarBytes) return source;
  return fail_field(field, "{} has {} bytes; at most {} are taken", field, source.size(),
                    kMaxGrammarBytes);
}

Result<std::string> of_schema(const std::string& field, const OrderedJson& given) {
  OrderedJson schema = given;
  if (given.is_string()) {
    REFRAIN_ASSIGN_OR_RETURN(schema, parse_ordered_json(given.get<std::string>()));
  }
  if (!schema.is_object() && !schema.is_boolean())
    return fail_field(field, "{} must be a JSON schema", field);
  REFRAIN_ASSIGN_OR_RETURN(std::string source, bounded(field, kJsonSchemaGrammar + schema.dump()));
  if (const std::string keyword = unsupported_keyword(Json(schema)); !keyword.empty())
    return fail_field(field, "{} has the keyword {}, which is not supported", field, keyword);
  return source;
}

std::string any_object() { return std::string(kJsonSchemaGrammar) + R"({"type":"object"})"; }

Result<std::string> of_text(const std::string& field, const char* kind, const OrderedJson& given) {
  if (!given.is_string() || given.get<std::string>().empty())
    return fail_field(field, "{} must be a string that is not empty", field);
  return bounded(field, kind + given.get<std::string>());
}

// A text as a literal of EBNF.
std::string literal(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

Result<std::string> of_choice(const std::string& field, const OrderedJson& given) {
  std::string rules = std::string(kEbnfGrammar) + "root ::= ";
  if (!given.is_array() || given.empty())
    return fail_field(field, "{} must be a list of strings", field);
  for (const OrderedJson& item : given) {
    if (!item.is_string() || item.get<std::string>().empty())
      return fail_field(field, "{} must be a list of strings that are not empty", field);
    rules += (&item == &given.front() ? "" : " | ") + literal(item.get<std::string>());
  }
  return bounded(field, std::move(rules));
}

Result<std::string> of_response_format(const OrderedJson& format) {
  const auto wrong = [] {
    return fail_field("response_format",
                      "response_format must be {{\"type\": \"text\"}}, {{\"type\": "
                      "\"json_object\"}} or {{\"type\": \"json_schema\", \"json_schema\": "
                      "{{\"name\": …, \"schema\": …}}}}");
  };
  if (!format.is_object() || !format.contains("type") || !format["type"].is_string())
    return wrong();
  const auto type = format["type"].get<std::string>();
  if (type == "text") return std::string();
  if (type == "json_object") return any_object();
  if (type == "structural_tag")
    return fail_field("response_format", "response_format structural_tag is not supported");
  const auto holder = format.find("json_schema");
  if (type != "json_schema" || holder == format.end() || !holder->is_object()) return wrong();
  const auto schema = holder->find("schema");
  if (schema == holder->end() || schema->is_null()) return any_object();
  return of_schema("response_format", *schema);
}

Result<std::string> of_structured_outputs(const OrderedJson& given) {
  const std::string field = "structured_outputs";
  if (!given.is_object()) return fail_field(field, "structured_outputs must be an object");
  std::string source;
  int kinds = 0;
  for (const auto& [key, value] : given.items()) {
    if (value.is_null() || (key == "json_object" && value == false)) continue;
    ++kinds;
    Result<std::string> made;
    if (key == "json") {
      made = of_schema("structured_outputs.json", value);
    } else if (key == "regex") {
      made = of_text("structured_outputs.regex", kRegexGrammar, value);
    } else if (key == "choice") {
      made = of_choice("structured_outputs.choice", value);
    } else if (key == "grammar") {
      made = of_text("structured_outputs.grammar", kEbnfGrammar, value);
    } else if (key == "json_object") {
      made = any_object();
    } else {
      return fail_field(field, "structured_outputs.{} is not supported", key);
    }
    if (!made) return made;
    source = std::move(*made);
  }
  if (kinds == 1) return source;
  return fail_field(field,
                    "structured_outputs must have one of json, regex, choice, grammar and "
                    "json_object, not {}",
                    kinds);
}

// References inside a tool's parameters count from the root of the whole schema.
Status hoist_definitions(OrderedJson& parameters, OrderedJson& definitions) {
  const auto own = parameters.find("$defs");
  if (own == parameters.end() || !own->is_object()) return {};
  for (const auto& [name, schema] : own->items()) {
    if (definitions.contains(name) && definitions[name] != schema)
      return fail_field("tools", "two tools have different definitions of {} in $defs", name);
    definitions[name] = schema;
  }
  parameters.erase("$defs");
  return {};
}

}  // namespace

Result<std::string> structured_output_of(const OrderedJson& body) {
  const auto given = [&body](const char* name) -> const OrderedJson* {
    const auto at = body.find(name);
    return at == body.end() || at->is_null() ? nullptr : &*at;
  };
  std::string source;
  std::string found;
  const auto take = [&](const char* name, auto&& make) -> Status {
    const OrderedJson* value = given(name);
    if (value == nullptr) return {};
    REFRAIN_ASSIGN_OR_RETURN(std::string made, make(*value));
    if (made.empty()) return {};
    if (!found.empty()) return fail_field(name, "{} and {} exclude each other", name, found);
    found = name;
    source = std::move(made);
    return {};
  };
  REFRAIN_RETURN_IF_ERROR(take("response_format", of_response_format));
  REFRAIN_RETURN_IF_ERROR(take("structured_outputs", of_structured_outputs));
  REFRAIN_RETURN_IF_ERROR(
      take("guided_json", [](const OrderedJson& v) { return of_schema("guided_json", v); }));
  REFRAIN_RETURN_IF_ERROR(take("guided_regex", [](const OrderedJson& v) {
    return of_text("guided_regex", kRegexGrammar, v);
  }));
  REFRAIN_RETURN_IF_ERROR(
      take("guided_choice", [](const OrderedJson& v) { return of_choice("guided_choice", v); }));
  REFRAIN_RETURN_IF_ERROR(take("guided_grammar", [](const OrderedJson& v) {
    return of_text("guided_grammar", kEbnfGrammar, v);
  }));
  return source;
}

Status begin_behind_reasoning(const text::AnswerFormat& format, text::ThinkingStart thinking,
                              const text::Tokenizer& tokenizer, SamplingParams& sampling) {
  const auto missing = [](const char* token) {
    return fail_field("response_format",
                      "a form of the answer begins behind the model's reasoning, whose end is {}, "
                      "and its tokenizer has no such token; chat_template_kwargs "
                      "{{\"enable_thinking\": false}} asks for an answer without reasoning",
                      token);
  };
  if (format.is_harmony()) {
    const auto message = tokenizer.id_of("<|message|>"), channel = tokenizer.id_of("<|channel|>");
    if (!message || !channel) return missing("<|channel|>final<|message|>");
    REFRAIN_ASSIGN_OR_RETURN(sampling.reasoning_end, tokenizer.encode("<|channel|>final", false));
    sampling.reasoning_end.insert(sampling.reasoning_end.end(), {-1, *message});
    return {};
  }
  if (format.reasoning_parser.empty() || thinking == text::ThinkingStart::kClosed) return {};
  const bool may_answer =
      thinking == text::ThinkingStart::kUnsaid && format.reasoning_parser == "qwen3";
  const auto begin = tokenizer.id_of("<think>");
  if (may_answer && !begin) return {};  // a model without the token does not think in this form
  const auto end = tokenizer.id_of("</think>");
  if (!end) return missing("</think>");
  sampling.reasoning_end = {*end};
  if (may_answer) sampling.reasoning_begin = *begin;
  return {};
}

Result<std::string> forced_tool_call(const OrderedJson& tools, const std::string& name) {
  OrderedJson calls = OrderedJson::array();
  OrderedJson definitions = OrderedJson::object();
  for (const OrderedJson& tool : tools) {
    const OrderedJson& function = tool["function"];
    if (!name.empty() && function["name"] != name) continue;
    OrderedJson parameters = {{"type", "object"}};
    if (const auto at = function.find("parameters"); at != function.end() && at->is_object())
      parameters = *at;
    REFRAIN_RETURN_IF_ERROR(hoist_definitions(parameters, definitions));
    calls.push_back(
        {{"type", "object"},
         {"properties", {{"name", {{"const", function["name"]}}}, {"parameters", parameters}}},
         {"required", {"name", "parameters"}},
         {"additionalProperties", false}});
  }
  if (calls.empty())
    return fail_field("tool_choice", "tool_choice names the function {}, which is not in tools",
                      name);
  OrderedJson schema = {{"anyOf", std::move(calls)}};
  if (!definitions.empty()) schema["$defs"] = std::move(definitions);
  auto source = of_schema("tools", schema);
  if (!source) source.error().field = "tools";
  return source;
}

}  // namespace refrain
