// Bodies of chats: what the template gets, which tools may be called, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/api_request.h"

namespace refrain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kGood = R"("messages": [{"role": "user", "content": "a"}])";
const std::string kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"zeta": 1, "alpha": 2}}})";

Result<ApiRequest> chat(const std::string& json, const RequestRules& rules = {}) {
  const auto body = parse_ordered_json(json);
  if (!body) return tl::make_unexpected(body.error());
  return parse_chat_request(*body, rules);
}
std::string error_of(const std::string& json, const RequestRules& rules = {}) {
  const auto request = chat(json, rules);
  return request ? "" : request.error().field + ": " + request.error().message;
}
// The message that the template gets.
OrderedJson message(const std::string& json) {
  const auto request = chat(R"({"messages": [)" + json + "]}");
  return request ? request->chat_input.variables["messages"][0]
                 : OrderedJson(request.error().message);
}
RequestRules with_tools() {
  RequestRules rules;
  rules.auto_tool_choice = true;
  return rules;
}

TEST(ChatRequest, MessagesReachTheTemplateAsTheyStand) {
  const auto request = chat("{" + kGood + R"(, "tools": [)" + kTool + R"(],
      "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low",
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 4})",
                            with_tools());
  ASSERT_TRUE(request) << request.error().message;
  const OrderedJson& variables = request->chat_input.variables;
  EXPECT_EQ(variables["messages"][0].dump(), R"({"role":"user","content":"a"})");
  EXPECT_EQ(variables["tools"][0]["function"]["parameters"].dump(), R"({"zeta":1,"alpha":2})");
  EXPECT_EQ(variables["enable_thinking"], false);
  EXPECT_EQ(variables["reasoning_effort"], "low");
  EXPECT_EQ(variables["add_generation_prompt"], true);
  EXPECT_EQ(request->max_tokens, 9);
  EXPECT_EQ(request->sampling.logprobs, 4);
  EXPECT_FALSE(request->add_special_tokens);
  EXPECT_FALSE(request->sampling.skip_special_tokens);  // marks of calls may be such tokens
}

TEST(ChatRequest, ContentIsTextWithALineForEachPart) {
  EXPECT_EQ(
      message(
          R"({"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]})")
          ["content"],
      "one\ntwo");
  EXPECT_EQ(
      message(
          R"({"role": "user", "content": ["a", {"type": "refusal", "refusal": "no"}]})")["content"],
      "a\nno");
  EXPECT_EQ(message(R"({"role": "tool", "content": []})")["content"], "");
  EXPECT_EQ(message(R"({"role": "user", "content": null})")["content"], "");
  EXPECT_EQ(message(R"({"role": "assistant"})")["content"], "");
}

TEST(ChatRequest, CallsOfTheHistoryHaveTheirArgumentsAsObjects) {
  const OrderedJson parsed = message(R"({"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": [1], \"a\": 2}"}},
      {"function": {"name": "f", "arguments": ""}}, {"function": {"name": "f"}},
      {"function": {"name": "f", "arguments": {"x": 1}}}]})");
  EXPECT_EQ(parsed["content"], "");
  EXPECT_EQ(parsed["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":[1],"a":2})");
  EXPECT_EQ(parsed["tool_calls"][0]["id"], "1");
  EXPECT_EQ(parsed["tool_calls"][1]["function"]["arguments"], OrderedJson::object());
  EXPECT_EQ(parsed["tool_calls"][2]["function"]["arguments"], OrderedJson::object());
  EXPECT_EQ(parsed["tool_calls"][3]["function"]["arguments"].dump(), R"({"x":1})");
  for (const char* none : {"null", "[]"}) {
    const auto plain = message(
        std::string(R"({"role": "assistant", "content": "a", "tool_calls": )") + none + "}");
    EXPECT_FALSE(plain.contains("tool_calls"));
  }
}

TEST(ChatRequest, ArgumentsOfAllCallsAreParsedWithinOneAllowance_R24) {
  std::string lists = R"({\"a\": [[])";
  for (int i = 1; i < 20'000; ++i) lists += ",[]";
  const std::string call = R"({"function": {"name": "f", "arguments": ")" + lists + "]}\"}}";
  const auto body = [](const std::string& calls) {
    return R"({"messages": [{"role": "assistant", "tool_calls": [)" + calls + "]}]}";
  };
  EXPECT_TRUE(chat(body(call)));
  EXPECT_THAT(error_of(body(call + "," + call)),
              AllOf(HasSubstr("messages[0].tool_calls[1].function.arguments"),
                    HasSubstr("too many lists")));
}

TEST(ChatRequest, AnAnswerIsContinuedInsteadOfBegun) {
  const std::string body =
      R"({"messages": [{"role": "assistant", "content": "a"}], "continue_final_message": true)";
  const auto request = chat(body + "}");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->chat_input.continue_final_message);
  EXPECT_EQ(request->chat_input.variables["add_generation_prompt"], false);
  EXPECT_THAT(error_of(body + R"(, "add_generation_prompt": true})"),
              HasSubstr("exclude each other"));
}

TEST(ChatRequest, ATemplateOfItsOwnNeedsTrust) {
  const std::string body = "{" + kGood + R"(, "chat_template": "{{ messages }}"})";
  EXPECT_THAT(error_of(body), HasSubstr("--trust-request-chat-template"));
  RequestRules rules;
  rules.trust_chat_template = true;
  EXPECT_EQ(chat(body, rules)->chat_input.chat_template, "{{ messages }}");
}

TEST(ChatRequest, ToolsMayBeCalledWhereTheServerReadsCalls) {
  const std::string body = "{" + kGood + R"(, "tools": [)" + kTool + "]";
  const auto request = chat(body + R"(, "parallel_tool_calls": false})", with_tools());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->tools[0]["function"]["name"], "f");
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_TRUE(chat(body + R"(, "tool_choice": "auto"})", with_tools()));
  EXPECT_THAT(error_of(body + "}"), HasSubstr("--enable-auto-tool-choice"));
  const auto none = chat(body + R"(, "tool_choice": "none"})");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->tools.is_null());
  EXPECT_FALSE(none->chat_input.variables.contains("tools"));
  EXPECT_TRUE(chat("{" + kGood + R"(, "tools": []})")->tools.is_null());
}

TEST(ChatRequest, AChoiceThatForcesACallBringsItsGrammar) {
  const std::string body = "{" + kGood + R"(, "tools": [)" + kTool + R"(], "tool_choice": )";
  const auto required = chat(body + R"("required"})");
  ASSERT_TRUE(required) << required.error().message;
  EXPECT_TRUE(required->forces_tool_call);
  EXPECT_THAT(required->sampling.grammar, HasSubstr("json_schema:"));
  // Instructor sends a form of the text beside the call that it forces.
  const auto with_form = chat(body + R"("required", "response_format": {"type": "json_object"}})");
  ASSERT_TRUE(with_form) << with_form.error().message;
  EXPECT_EQ(with_form->sampling.grammar, required->sampling.grammar);
  EXPECT_THAT(error_of(body + R"("required", "guided_regex": "a"})"), HasSubstr("exclude each"));
  EXPECT_THAT(
      error_of(body + R"({"type": "function", "function": {"name": "none"}}})", with_tools()),
      HasSubstr("not in tools"));
  EXPECT_THAT(error_of(body + "5}", with_tools()), HasSubstr("tool_choice must be"));
  EXPECT_THAT(error_of("{" + kGood + R"(, "tool_choice": "auto"})", with_tools()),
              HasSubstr("tools must be set"));
}

TEST(ChatRequest, MistakesNameTheirField) {
  for (
      const char* messages :
      {"5", "[]", "[5]", "[{}]", R"([{"role": 5, "content": "a"}])", R"([{"role": "user"}])",
       R"([{"role": "user", "content": 5}])",
       R"([{"role": "user", "content": [{"type": "image_url"}]}])",
       R"([{"role": "user", "content": [5]}])", R"([{"role": "assistant", "tool_calls": 5}])",
       R"([{"role": "assistant", "tool_calls": [5]}])",
       R"([{"role": "assistant", "tool_calls": [{}]}])",
       R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])"}) {
    EXPECT_THAT(error_of(std::string(R"({"messages": )") + messages + "}"), HasSubstr("messages"))
        << messages;
  }
  const std::string begin = "{" + kGood;
  EXPECT_THAT(error_of("{}"), HasSubstr("messages"));
  EXPECT_THAT(error_of(begin + R"(, "top_logprobs": 2})"), HasSubstr("top_logprobs"));
  EXPECT_THAT(error_of(begin + R"(, "tools": 5})"), HasSubstr("tools"));
  EXPECT_THAT(error_of(begin + R"(, "tools": [{"type": "function"}]})"), HasSubstr("tools[0]"));
  EXPECT_THAT(error_of(begin + R"(, "add_generation_prompt": 1})"),
              HasSubstr("add_generation_prompt"));
  EXPECT_THAT(error_of(begin + R"(, "chat_template": 1})"), HasSubstr("chat_template"));
  EXPECT_THAT(error_of(begin + R"(, "chat_template_kwargs": {"messages": []}})"),
              HasSubstr("chat_template_kwargs"));
}

}  // namespace
}  // namespace refrain
