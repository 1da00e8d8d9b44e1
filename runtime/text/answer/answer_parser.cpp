#include "runtime/text/answer/answer_parser.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/text/answer/deepseek_v3.h"
#include "runtime/text/answer/harmony.h"
#include "runtime/text/answer/hermes.h"
#include "runtime/text/answer/llama3_json.h"
#include "runtime/text/answer/mistral.h"
#include "runtime/text/answer/qwen3_xml.h"

namespace refrain::text {
namespace {

using Json = nlohmann::json;

Status check_name(const char* option, const std::string& name,
                  const std::vector<std::string>& names) {
  if (name.empty() || std::ranges::find(names, name) != names.end()) return {};
  return fail_field(option, "{} {} is not known; there are {}", option, name,
                    fmt::join(names, ", "));
}

}  // namespace

const std::vector<std::string>& tool_call_parser_names() {
  static const std::vector<std::string> names = {"hermes",      "llama3_json",  "llama4_json",
                                                 "mistral",     "qwen3_xml",    "qwen3_coder",
                                                 "deepseek_v3", "deepseek_v31", "openai"};
  return names;
}

std::unique_ptr<ToolCallParser> make_tool_call_parser(const std::string& name, const Json& tools) {
  if (name == "hermes") return std::make_unique<HermesParser>();
  if (name == "llama3_json" || name == "llama4_json") return std::make_unique<Llama3JsonParser>();
  if (name == "mistral") return std::make_unique<MistralParser>();
  if (name == "qwen3_xml" || name == "qwen3_coder") return std::make_unique<Qwen3XmlParser>(tools);
  if (name == "deepseek_v3" || name == "deepseek_v31") return std::make_unique<DeepseekV3Parser>();
  return nullptr;
}

const std::vector<std::string>& reasoning_parser_names() {
  static const std::vector<std::string> names = {"qwen3", "deepseek_r1", "openai_gptoss"};
  return names;
}

Status check_answer_format(const AnswerFormat& format) {
  REFRAIN_RETURN_IF_ERROR(
      check_name("--tool-call-parser", format.tool_call_parser, tool_call_parser_names()));
  REFRAIN_RETURN_IF_ERROR(
      check_name("--reasoning-parser", format.reasoning_parser, reasoning_parser_names()));
  const bool tools_fit = format.tool_call_parser.empty() || format.tool_call_parser == "openai";
  const bool reasoning_fits =
      format.reasoning_parser.empty() || format.reasoning_parser == "openai_gptoss";
  if (!format.is_harmony() || (tools_fit && reasoning_fits)) return {};
  return fail_field("--reasoning-parser",
                    "--reasoning-parser {} and --tool-call-parser {} read different formats; "
                    "openai_gptoss and openai go together",
                    format.reasoning_parser, format.tool_call_parser);
}

AnswerParser::AnswerParser(const AnswerFormat& format, ThinkingStart start, const Json& tools) {
  if (format.is_harmony()) {
    calls_ = std::make_unique<HarmonyParser>(!tools.is_null() && !format.tool_call_parser.empty());
    return;
  }
  if (!format.reasoning_parser.empty())
    reasoning_.emplace(start, format.reasoning_parser == "deepseek_r1");
  if (!tools.is_null()) calls_ = make_tool_call_parser(format.tool_call_parser, tools);
}

void AnswerParser::pass(const ReasoningSplitter::Parts& parts) {
  events_.reasoning(parts.reasoning);
  if (parts.rest.empty()) return;
  if (calls_) {
    calls_->push(parts.rest, events_);
  } else {
    events_.content(parts.rest);
  }
}

std::vector<AnswerEvent> AnswerParser::push(std::string_view text) {
  pass(reasoning_ ? reasoning_->push(text) : ReasoningSplitter::Parts{{}, std::string(text)});
  return events_.take();
}

std::vector<AnswerEvent> AnswerParser::finish() {
  if (reasoning_) pass(reasoning_->finish());
  if (calls_) calls_->finish(events_);
  events_.finish();
  return events_.take();
}

}  // namespace refrain::text
