// Choices of chats in OpenAI's shapes: calls and reasoning, whole and streamed.
#include "runtime/server/chat_answer.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"

namespace refrain {
namespace {

const nlohmann::json kTools = nlohmann::json::array();
const std::string kCall = R"(<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>)";

ChatAnswer answer(const std::string& parser, bool parallel = true, bool reasoning = true) {
  return {{{parser, "qwen3"}, text::ThinkingStart::kUnsaid, parallel, reasoning}, kTools};
}
ChatParts whole(ChatAnswer& answer, const std::string& text) {
  ChatParts parts;
  for (const char c : text) answer.collect({&c, 1}, false, parts);
  answer.collect("", true, parts);
  return parts;
}

TEST(ChatAnswer, CallsHaveIdsOfTheirOwn) {
  ChatAnswer hermes = answer("hermes");
  const ChatParts parts = whole(hermes, "<think>Hm</think>" + kCall + kCall);
  ASSERT_EQ(parts.calls.size(), 2u);
  EXPECT_EQ(parts.calls[0].name, "f");
  EXPECT_EQ(parts.calls[1].arguments, R"({"x": 1})");
  EXPECT_TRUE(parts.calls[0].id.starts_with("chatcmpl-tool-"));
  EXPECT_NE(parts.calls[0].id, parts.calls[1].id);
  EXPECT_EQ(parts.reasoning, "Hm");
  EXPECT_EQ(parts.content, "");
  EXPECT_TRUE(hermes.has_called());
  ChatAnswer mistral = answer("mistral");
  EXPECT_EQ(whole(mistral, "[TOOL_CALLS]f{}").calls.at(0).id.size(), 9u);
}

TEST(ChatAnswer, AStreamTellsACallsNameOnceAndItsArgumentsAsTheyCome) {
  ChatAnswer hermes = answer("hermes");
  ChatParts sum;
  int deltas = 0;
  for (const char c : "Look:" + kCall) {
    const ChatParts parts = hermes.stream({&c, 1}, false);
    sum.content += parts.content;
    for (const ToolCallPart& call : parts.calls) {
      EXPECT_EQ(call.index, 0);
      EXPECT_EQ(call.id.empty(), deltas++ > 0);
      sum.calls.resize(1);
      sum.calls[0].name += call.name;
      sum.calls[0].arguments += call.arguments;
    }
  }
  EXPECT_EQ(sum.content, "Look:");
  EXPECT_EQ(sum.calls.at(0).name, "f");
  EXPECT_EQ(sum.calls.at(0).arguments, R"({"x": 1})");
  EXPECT_GT(deltas, 3);
}

TEST(ChatAnswer, ACallThatBreaksOffIsContentOrStaysInItsStream) {
  const std::string broken = R"(<tool_call>{"name": "f", "arguments": {"x": oh)";
  ChatAnswer first = answer("hermes");
  const ChatParts parts = whole(first, broken);
  EXPECT_EQ(parts.content, broken);
  EXPECT_TRUE(parts.calls.empty());
  EXPECT_FALSE(first.has_called());
  ChatAnswer second = answer("hermes");
  const ChatParts streamed = second.stream(broken, true);
  EXPECT_EQ(streamed.calls.at(0).arguments, R"({"x": )");
  EXPECT_EQ(streamed.content, "oh");
  EXPECT_FALSE(second.has_called());
}

TEST(ChatAnswer, OneCallOnlyAndNoReasoningWhereTheRequestSaysSo) {
  ChatAnswer hermes = answer("hermes", false, false);
  const ChatParts parts = whole(hermes, "<think>Hm</think>" + kCall + kCall);
  EXPECT_EQ(parts.calls.size(), 1u);
  EXPECT_EQ(parts.reasoning, "");
  ChatAnswer stream = answer("hermes", false);
  EXPECT_EQ(stream.stream(kCall + kCall, true).calls.size(), 1u);
}

}  // namespace
}  // namespace refrain
