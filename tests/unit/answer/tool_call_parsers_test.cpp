// Each format of tool calls: what its models write, and what only looks like it.
#include <gtest/gtest.h>

#include "tests/unit/answer/answer.h"

namespace refrain::text {
namespace {

Answer read(const std::string& parser, std::string_view text) {
  return answer_of(parser_of({parser, {}}), text);
}
Answer said(std::string content) { return {{}, std::move(content), {}}; }
Answer called(std::vector<Call> calls, std::string content = {}) {
  return {{}, std::move(content), std::move(calls)};
}

TEST(HermesParser, ReadsCallsBetweenTags) {
  EXPECT_EQ(read("hermes",
                 "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}"
                 "\n</tool_call>"),
            called({{"weather", R"({"city": "Oslo"})"}}));
  EXPECT_EQ(read("hermes",
                 "Let me look.\n<tool_call>\n{\"name\":\"a\",\"arguments\":{}}\n</tool_call>\n"
                 "<tool_call>\n{\"arguments\":{\"x\":[1,{\"y\":\"}\"}]},\"name\":\"b\"}\n"
                 "</tool_call>"),
            called({{"a", "{}"}, {"b", R"({"x":[1,{"y":"}"}]})"}}, "Let me look.\n"));
  EXPECT_EQ(
      read("hermes", R"(<tool_call>{"name": "a", "arguments": {"q": "x"}}</tool_call> Done.)"),
      called({{"a", R"({"q": "x"})"}}, " Done."));
}

TEST(HermesParser, ArgumentsMayBeAStringOrAbsent) {
  EXPECT_EQ(read("hermes", R"(<tool_call>{"name": "a", "arguments": "{\"x\": 1}"}</tool_call>)"),
            called({{"a", R"({"x": 1})"}}));
  EXPECT_EQ(read("hermes", R"(<tool_call>{"name": "a"}</tool_call>)"), called({{"a", "{}"}}));
  EXPECT_EQ(read("hermes", R"(<tool_call>{"name": "a", "arguments": null}</tool_call>)"),
            called({{"a", "{}"}}));
  EXPECT_EQ(read("hermes", R"(<tool_call>{"id": 7, "name": "a\u0062", "parameters": {}})"),
            called({{"ab", "{}"}}));
}

TEST(HermesParser, ArgumentsThatAreAStringAreNoDeeperThanAnObject) {
  const auto call = [](size_t levels) {
    const std::string lists = std::string(levels, '[') + std::string(levels, ']');
    return R"(<tool_call>{"name": "a", "arguments": "{\"x\": )" + lists + R"(}"}</tool_call>)";
  };
  EXPECT_EQ(read("hermes", call(63)).calls.size(), 1U);
  EXPECT_EQ(read("hermes", call(64)), said(call(64)));
}

TEST(HermesParser, WhatIsNoCallIsContentWholly) {
  for (const char* text :
       {"Plain text, {\"name\": \"a\", \"arguments\": {}}", "", " \n", "<tool_call", "<tool_call>",
        "<tool_call>no json</tool_call>", R"(<tool_call>{"name": "a", "arguments": {"x": }})",
        R"(<tool_call>{"name": "a", "arguments": {"x": 1)",
        R"(<tool_call>{"name": "", "arguments": {}})",
        R"(<tool_call>{"name": 5, "arguments": {}}</tool_call>)",
        R"(<tool_call>{"arguments": {"x": 1}}</tool_call>)",
        R"(<tool_call>{"name": "a", "arguments": {}, "name": "b"}</tool_call>)",
        R"(<tool_call>{"name": "a", "arguments": [1]}</tool_call>)",
        R"(<tool_call>{"name": "a", "arguments": "no object"}</tool_call>)",
        R"(<tool_call>[{"name": "a", "arguments": {}}]</tool_call>)",
        "a < b <tool_ <tool_callx>"}) {
    EXPECT_EQ(read("hermes", text), said(text));
  }
}

TEST(HermesParser, ACallAfterABrokenOneIsRead) {
  EXPECT_EQ(
      read("hermes", R"(<tool_call>{"name": "a", "arguments": {"x": <tool_call>{"name": "b", )"
                     R"("arguments": {}}</tool_call>)"),
      called({{"b", "{}"}}, R"(<tool_call>{"name": "a", "arguments": {"x": )"));
  EXPECT_EQ(read("hermes", R"(<tool_call>{"name":"a"}<tool_call>{"name":"b"}</tool_call>)"),
            called({{"a", "{}"}, {"b", "{}"}}));
}

TEST(Llama3JsonParser, ReadsObjectsThatAreCalls) {
  EXPECT_EQ(read("llama3_json", R"({"name": "weather", "parameters": {"city": "Oslo"}})"),
            called({{"weather", R"({"city": "Oslo"})"}}));
  EXPECT_EQ(
      read("llama3_json", R"(<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; )"
                          R"({"name": "b", "arguments": {"x": 1}})"),
      called({{"a", "{}"}, {"b", R"({"x": 1})"}}));
  EXPECT_EQ(read("llama3_json", "Sure:\n{\"name\": \"a\", \"parameters\": {}}\nThere."),
            called({{"a", "{}"}}, "Sure:\n\nThere."));
}

TEST(Llama3JsonParser, OtherJsonIsContent) {
  for (const char* text :
       {R"({"city": "Oslo", "name": "x", "parameters": {}})", R"({"name": "Ada"})", "{", "{}",
        "{{ x }}", R"({"name": "a", "parameters": {"x": tru}})", R"({"name": "a", "parameters": {)",
        "<|python_tag|>print(1)", "if (a) { return 1; }", R"([{"name"}])"}) {
    EXPECT_EQ(read("llama3_json", text), said(text));
  }
}

TEST(MistralParser, ReadsListsAndNames) {
  EXPECT_EQ(read("mistral", R"([TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, )"
                            R"({"name": "b", "arguments": {}, "id": "123456789"}])"),
            called({{"a", R"({"x": 1})"}, {"b", "{}"}}));
  EXPECT_EQ(read("mistral", R"(Hm.[TOOL_CALLS]weather{"city": "Oslo"}[TOOL_CALLS]b[ARGS]{})"),
            called({{"weather", R"({"city": "Oslo"})"}, {"b", "{}"}}, "Hm."));
  EXPECT_EQ(read("mistral", R"([TOOL_CALLS]a[CALL_ID]abcdefghi[ARGS]{"x": 2})"),
            called({{"a", R"({"x": 2})"}}));
  EXPECT_EQ(read("mistral", R"([TOOL_CALLS]{"name": "a", "arguments": {}})"),
            called({{"a", "{}"}}));
}

TEST(MistralParser, WhatIsNoCallIsContentWholly) {
  for (const char* text :
       {"[TOOL_CALLS]", "[TOOL_CALLS] []", "[TOOL_CALLS]what is it?", "[TOOL_CALLS][1]",
        R"([TOOL_CALLS]a{"x": })", R"([TOOL_CALLS]a{"x")", "[TOOL_CALLS]a[ARGS]",
        R"([TOOL_CALLS] [{"name": "a"; }])", "[TOOL_CALLS]a b{}", "[TOOL"}) {
    EXPECT_EQ(read("mistral", text), said(text));
  }
}

TEST(Qwen3XmlParser, ReadsParametersByTheirTypes) {
  const char* text =
      "<tool_call>\n<function=weather>\n<parameter=city>\nOslo "
      "\"N\"\n</parameter>\n<parameter=days>\n3\n"
      "</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=places>\n[1, "
      "\"a\"]\n</parameter>\n"
      "<parameter=more>\nnull\n</parameter>\n<parameter=any>\n{\"a\": "
      "1}\n</parameter>\n</function>\n"
      "</tool_call>";
  EXPECT_EQ(
      read("qwen3_xml", text),
      called(
          {{"weather",
            R"({"city": "Oslo \"N\"", "days": 3, "metric": true, "places": [1,"a"], "more": null, )"
            R"("any": {"a":1}})"}}));
}

TEST(Qwen3XmlParser, TextStaysTextAndKeepsItsLines) {
  EXPECT_EQ(
      read("qwen3_xml",
           "<function=weather><parameter=city>\n\nif a < b:\n\tpass\n\n</parameter>"
           "<parameter=days>soon</parameter><parameter=new>5</parameter></function>"),
      called({{"weather", R"({"city": "\nif a < b:\n\tpass\n", "days": "soon", "new": "5"})"}}));
  EXPECT_EQ(read("qwen3_xml",
                 "Both:\n<tool_call><function=a></function></tool_call>\n<tool_call>\n"
                 "<function=b>\n</function>\n</tool_call>\nThat is all."),
            called({{"a", "{}"}, {"b", "{}"}}, "Both:\n\nThat is all."));
}

// What it would be as JSON is copied and printed level by level.
TEST(Qwen3XmlParser, AValueOfTooManyLevelsStaysText_R25) {
  const auto argument = [](size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  for (const size_t levels : {size_t{64}, size_t{65}, size_t{200'000}}) {
    const std::string value = argument(levels), quote = levels > 64 ? "\"" : "";
    EXPECT_EQ(read("qwen3_xml", "<tool_call><function=weather><parameter=places>" + value +
                                    "</parameter></function></tool_call>"),
              called({{"weather", R"({"places": )" + quote + value + quote + "}"}}))
        << levels;
  }
}

TEST(Qwen3XmlParser, WhatIsNoCallIsContentWholly) {
  for (const char* text :
       {"<tool_call>\nfunction</tool_call>", "<function=", "<function=a", "<function=>x",
        "<function=a\n>", "<function=weather>\n<parameter=city>\nOslo",
        "<function=weather>\n<parameter=city>\nOslo\n</param", "<function=weather>text</function>",
        "<function=weather><parameter=><", "<tool_call>"}) {
    EXPECT_EQ(read("qwen3_xml", text), said(text));
  }
}

constexpr const char* kDeepseekCall =
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": "
    "\"Oslo\"}\n```<｜tool▁call▁end｜>";

TEST(DeepseekV3Parser, ReadsBlocksOfCalls) {
  const std::string call = kDeepseekCall;
  EXPECT_EQ(read("deepseek_v3", "<｜tool▁calls▁begin｜>" + call + "<｜tool▁calls▁end｜>"),
            called({{"weather", R"({"city": "Oslo"})"}}));
  EXPECT_EQ(read("deepseek_v3",
                 "One moment.<｜tool▁calls▁begin｜>" + call + "\n" + call + "<｜tool▁calls▁end｜>"),
            called({{"weather", R"({"city": "Oslo"})"}, {"weather", R"({"city": "Oslo"})"}},
                   "One moment."));
  EXPECT_EQ(read("deepseek_v31",
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": 1}"
                 "<｜tool▁call▁end｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
            called({{"a", R"({"x": 1})"}, {"b", "{}"}}));
}

TEST(DeepseekV3Parser, WhatIsNoCallIsContentWholly) {
  for (const char* text :
       {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜>text",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```py\n{}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"x\":"
        " }",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n[1]"}) {
    EXPECT_EQ(read("deepseek_v3", text), said(text));
  }
}

TEST(HarmonyParser, ReadsChannels) {
  EXPECT_EQ(read("openai",
                 "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final"
                 "<|message|>Hello.<|return|>"),
            (Answer{"Think.", "Hello.", {}}));
  EXPECT_EQ(
      read("openai",
           "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary"
           " to=functions.weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>"),
      (Answer{"Think.", "", {{"weather", R"({"city": "Oslo"})"}}}));
  EXPECT_EQ(read("openai", " to=functions.a<|channel|>commentary json<|message|>{}"),
            called({{"a", "{}"}}));
  EXPECT_EQ(read("openai",
                 "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                 " to=functions.a<|channel|>commentary<|message|>{}<|call|>"),
            called({{"a", "{}"}}, "I look."));
}

TEST(HarmonyParser, WhatIsNoCallIsContent) {
  EXPECT_EQ(read("openai", "No channel at all."), said("No channel at all."));
  EXPECT_EQ(read("openai", "<|channel|>commentary to=functions.a<|message|>{\"x\": }<|call|>"),
            said("<|channel|>commentary to=functions.a<|message|>{\"x\": }"));
  EXPECT_EQ(read("openai", "<|channel|>final<|message|>a <|constrain|> b"),
            said("a <|constrain|> b"));
  EXPECT_EQ(read("openai", "total"), said("total"));
  // Without tools in the request nothing is a call.
  EXPECT_EQ(answer_of({{"openai", {}}, ThinkingStart::kUnsaid, nullptr},
                      "<|channel|>commentary to=functions.a<|message|>{}<|call|>"),
            said("<|channel|>commentary to=functions.a<|message|>{}"));
}

}  // namespace
}  // namespace refrain::text
