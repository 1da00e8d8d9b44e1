#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/response_store.h"
#include "runtime/server/responses_request.h"

namespace refrain {
namespace {

using ::testing::ElementsAre;

TEST(ResponseStore, KeepsThoseUsedLastWithinItsBytes) {
  ResponseStore store(4000);
  const std::string text(1000, 'x');
  for (const char* id : {"a", "b", "c"}) store.put("key", id, {text, ""});
  ASSERT_TRUE(store.find("key", "a")) << "used now, so b is the oldest";
  store.put("key", "d", {text, ""});
  EXPECT_FALSE(store.find("key", "b"));
  for (const char* id : {"a", "c", "d"}) EXPECT_TRUE(store.find("key", id)) << id;
  EXPECT_LE(store.bytes(), 4000u);
  store.put("key", "large", {std::string(5000, 'x'), ""});
  EXPECT_FALSE(store.find("key", "large"));
  EXPECT_TRUE(store.find("key", "a")) << "what cannot be kept takes nothing";
}

TEST(ResponseStore, GivesAKeyItsOwnAlone_R16) {
  ResponseStore store(4000);
  store.put("ada", "a", {"messages", "response"});
  EXPECT_FALSE(store.find("bob", "a"));
  EXPECT_FALSE(store.find("", "a"));
  EXPECT_EQ(store.find("ada", "a")->messages, "messages");
}

Result<ResponsesRequest> parse(const char* text, RequestRules rules = {}) {
  return parse_responses_request(*parse_ordered_json(text), rules,
                                 [](const std::string&) -> Result<OrderedJson> {
                                   return OrderedJson::parse(R"([{"role":"user","content":"0"}])");
                                 });
}

TEST(ResponsesRequest, BecomesAChat) {
  RequestRules rules;
  rules.auto_tool_choice = true;
  const auto request = parse(R"({
    "model": "m", "instructions": "Be brief.", "previous_response_id": "resp_1", "max_output_tokens": 7,
    "reasoning": {"effort": "low"}, "temperature": 0.5, "stream": true, "user": "me", "store": false,
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "1"}]},
              {"type": "reasoning", "summary": []},
              {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"x\": 1}"},
              {"type": "function_call_output", "call_id": "c", "output": "2"}]})",
                             rules);
  ASSERT_TRUE(request) << request.error().message;
  const ApiRequest& chat = request->chat;
  EXPECT_EQ(chat.chat_input.variables["messages"].dump(),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"0"},)"
            R"({"role":"user","content":"1"},)"
            R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{"x":1}}}]},)"
            R"({"role":"tool","tool_call_id":"c","content":"2"}])");
  EXPECT_EQ(chat.tools[0]["function"]["name"], "f");
  EXPECT_EQ(chat.chat_input.variables["reasoning_effort"], "low");
  EXPECT_TRUE(chat.stream);
  EXPECT_EQ(chat.max_tokens, 7);
  EXPECT_EQ(chat.sampling.temperature, 0.5);
  EXPECT_THAT(chat.ignored, ElementsAre("user"));
  EXPECT_FALSE(request->store);
  EXPECT_EQ(request->messages.size(), 4u) << "without the instructions, which are of one response";
}

TEST(ResponsesRequest, ErrorsNameTheFieldsOfThisApi) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": 3})", "input"},
      {R"({"input": [3]})", "input"},
      {R"({"input": [{"role": "user"}]})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input"},
      {R"({"input": "x", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "x", "store": 1})", "store"},
      {R"({"input": "x", "instructions": 1})", "instructions"},
      {R"({"input": "x", "previous_response_id": 1})", "previous_response_id"},
      {R"({"input": "x", "tools": 1})", "tools"},
      {R"({"input": "x", "text": {"format": {"type": "verse"}}})", "text.format"},
  };
  for (const auto& [text, field] : cases) {
    const auto request = parse(text);
    ASSERT_FALSE(request) << text;
    EXPECT_EQ(request.error().field, field) << request.error().message;
  }
}

}  // namespace
}  // namespace refrain
