// Calls that real templates print are read back by their family's parser: the same names and
// arguments, and the same prompt when they come back in the history, as clients send them.
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/server/chat_input.h"
#include "runtime/text/answer/answer_parser.h"
#include "runtime/text/chat_template.h"
#include "tests/oracle/fixtures.h"
#include "tests/unit/answer/answer.h"

namespace refrain::text {
namespace {

using nlohmann::ordered_json;

struct Family {
  const char* fixture;
  const char* parser;
  bool several_calls = true;
  bool takes_tools = true;  // one prints them in a way that jinja2 does not have
};

const Family kFamilies[] = {
    {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
    {"Qwen-Qwen3-0.6B", "hermes"},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes"},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json", false},
    {"meta-llama-Llama-3.2-3B-Instruct", "llama3_json", false},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama3_json", false},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"},
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral"},
    {"unsloth-mistral-Devstral-Small-2507", "mistral"},
    {"Qwen3-Coder", "qwen3_xml"},
    {"Qwen3.5-4B", "qwen3_xml"},
    {"llama-cpp-deepseek-r1", "deepseek_v3", true, false},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek_v31"},
    {"openai-gpt-oss-120b", "openai", false},
};

// Plain types: some templates print nothing else.
nlohmann::json plain_tools() {
  return nlohmann::json::parse(R"([{"type": "function", "function": {"name": "weather",
    "description": "The weather of a city", "parameters": {"type": "object", "properties": {
      "city": {"type": "string", "description": "Its name"},
      "days": {"type": "integer", "description": "How many"},
      "metric": {"type": "boolean", "description": "Units"}}, "required": ["city"]}}}])");
}

// A client's call: arguments are JSON text.
ordered_json call_json(const Call& call) {
  return {{"id", "abcdefgh1"},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

std::string prompt_of(const ChatTemplate& compiled, const Family& family,
                      const std::vector<Call>& calls) {
  ordered_json body = {{"messages", {{{"role", "user"}, {"content", "How is the weather?"}}}},
                       {"add_generation_prompt", false}};
  if (family.takes_tools) body["tools"] = ordered_json(plain_tools());
  if (!calls.empty()) {
    ordered_json message = {{"role", "assistant"}, {"content", nullptr}};
    for (const Call& call : calls) message["tool_calls"].push_back(call_json(call));
    body["messages"].push_back(message);
  }
  auto input = read_chat_input(body, false);
  if (!input) return "input: " + input.error().message;
  input->variables["bos_token"] = "<s>";
  input->variables["eos_token"] = "</s>";
  const auto text = compiled.render(input->variables);
  return text ? *text : "render: " + text.error().message;
}

TEST(ToolCallRoundTrip, RealTemplatesCallsAreReadAndPrintedAgain) {
  ASSERT_FALSE(fixtures_dir().empty()) << how_to_make_fixtures();
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.fixture);
    const auto fixture = ordered_json::parse(
        read_file(fixtures_dir() / "templates" / (std::string(family.fixture) + ".json")));
    const auto compiled = ChatTemplate::from_source(fixture["template"].get<std::string>());
    ASSERT_TRUE(compiled) << compiled.error().message;
    std::vector<Call> calls = {{"weather", R"({"city": "Oslo \"N\" {é}\n", "days": 3})"}};
    if (family.several_calls) calls.push_back({"weather", R"({"city": "Rom", "metric": true})"});
    const std::string before = prompt_of(*compiled, family, {}),
                      prompt = prompt_of(*compiled, family, calls);
    ASSERT_TRUE(prompt.starts_with(before) && prompt.size() > before.size() + 20) << prompt;
    Answer answer;
    AnswerParser parser({family.parser, {}}, ThinkingStart::kUnsaid, plain_tools());
    answer.take(parser.push(prompt.substr(before.size())));
    answer.take(parser.finish());
    ASSERT_EQ(answer.calls.size(), calls.size()) << answer;
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(answer.calls[i].name, calls[i].name);
      EXPECT_EQ(nlohmann::json::parse(answer.calls[i].arguments),
                nlohmann::json::parse(calls[i].arguments));
    }
    EXPECT_EQ(prompt_of(*compiled, family, answer.calls), prompt);
  }
}

}  // namespace
}  // namespace refrain::text
