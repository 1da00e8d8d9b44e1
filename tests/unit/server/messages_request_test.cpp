#include "runtime/server/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain {
namespace {

using ::testing::ElementsAre;

Result<ApiRequest> parse_messages(const char* text, bool auto_tool_choice = false) {
  RequestRules rules;
  rules.auto_tool_choice = auto_tool_choice;
  return parse_messages_request(*parse_ordered_json(text), rules);
}

TEST(MessagesRequest, BecomesAChat) {
  const auto chat = parse_messages(R"({
    "model": "m", "max_tokens": 7, "stop_sequences": ["a", "b"], "top_k": 5, "metadata": {},
    "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
    "messages": [{"role": "user", "content": "1"},
                 {"role": "assistant", "content": [
                   {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "2"},
                   {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}}]},
                 {"role": "user", "content": [
                   {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "3"}]},
                   {"type": "tool_result", "tool_use_id": "d"}, {"type": "text", "text": "4"}]}]})",
                                   true);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->chat_input.variables["messages"].dump(),
            R"([{"role":"system","content":"Be\nbrief."},{"role":"user","content":"1"},)"
            R"({"role":"assistant","content":"2","tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{"x":1}}}]},)"
            R"({"role":"tool","tool_call_id":"c","content":"3"},)"
            R"({"role":"tool","tool_call_id":"d","content":""},{"role":"user","content":"4"}])");
  EXPECT_EQ(chat->tools.dump(), R"([{"function":{"description":"d","name":"f","parameters":)"
                                R"({"type":"object"}},"type":"function"}])");
  EXPECT_FALSE(chat->parallel_tool_calls);
  EXPECT_EQ(chat->max_tokens, 7);
  EXPECT_EQ(chat->sampling.top_k, 5);
  EXPECT_THAT(chat->sampling.stop, ElementsAre("a", "b"));
  EXPECT_THAT(chat->ignored, ElementsAre("metadata"));
}

TEST(MessagesRequest, AnAnswerThatTheClientHasBegunIsContinued) {
  const std::pair<const char*, bool> lasts[] = {
      {R"({"role": "assistant", "content": "It is "})", true},
      {R"({"role": "assistant", "content": [{"type": "text", "text": "It"}, {"type": "text", "text": "is"}]})",
       true},
      {R"({"role": "assistant", "content": "It"}, {"role": "assistant", "content": [{"type": "thinking"}]})",
       true},
      {R"({"role": "assistant", "content": ""})", false},
      {R"({"role": "assistant", "content": " \n"})", false},
      {R"({"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]})", false},
      {R"({"role": "assistant", "content": [{"type": "text", "text": "It is"},
                                            {"type": "tool_use", "id": "c", "name": "f"}]})",
       false},
      {R"({"role": "assistant", "content": "It is"}, {"role": "user", "content": "What?"})", false},
  };
  for (const auto& [last, continued] : lasts) {
    const std::string body =
        R"({"max_tokens": 1, "messages": [{"role": "user", "content": "?"}, )" + std::string(last) +
        "]}";
    const auto chat = parse_messages(body.c_str());
    ASSERT_TRUE(chat) << chat.error().message;
    EXPECT_EQ(chat->chat_input.continue_final_message, continued) << last;
    EXPECT_EQ(chat->chat_input.variables["add_generation_prompt"], !continued) << last;
  }
}

TEST(MessagesRequest, ErrorsNameTheFieldsOfThisApi) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_tokens": 1})", "messages"},
      {R"({"max_tokens": 1, "messages": [3]})", "messages"},
      {R"({"max_tokens": 1, "messages": [{"role": "user"}]})", "messages"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [3]}]})", "messages"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "tool_use"}]}]})",
       "messages"},
      {R"({"messages": [{"role": "user", "content": "x"}]})", "max_tokens"},
      {R"({"max_tokens": 0, "messages": [{"role": "user", "content": "x"}]})", "max_tokens"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "tools": {}})",
       "tools"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "tools": [{}]})",
       "tools"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "tool_choice": 1})",
       "tool_choice"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "stop_sequences": 1})",
       "stop_sequences"},
  };
  for (const auto& [text, field] : cases) {
    const auto request = parse_messages(text);
    ASSERT_FALSE(request) << text;
    EXPECT_EQ(request.error().field, field) << request.error().message;
  }
}

}  // namespace
}  // namespace refrain
