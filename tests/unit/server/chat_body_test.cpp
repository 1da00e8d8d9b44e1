// What requests of the other APIs hand on to their chats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/messages_request.h"
#include "runtime/server/responses_request.h"

namespace refrain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

// A body of /v1/messages and one of /v1/responses with these fields, as the chats they become.
std::vector<Result<ApiRequest>> chats(const std::string& fields) {
  const auto messages = parse_ordered_json(
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], )" + fields + "}");
  const auto response = parse_ordered_json(R"({"input": "a", )" + fields + "}");
  auto parsed = parse_responses_request(
      *response, {},
      [](const std::string&) -> Result<OrderedJson> { return OrderedJson::array(); });
  std::vector<Result<ApiRequest>> chats = {parse_messages_request(*messages, {})};
  chats.push_back(parsed ? Result<ApiRequest>(parsed->chat) : tl::make_unexpected(parsed.error()));
  return chats;
}

TEST(ChatBody, SamplingOfChatsIsTakenByTheOtherApis) {
  for (const auto& chat : chats(R"(
    "temperature": 0.5, "top_p": 0.75, "top_k": 5, "min_p": 0.25, "seed": 6, "repetition_penalty": 1.5,
    "presence_penalty": 1.25, "frequency_penalty": -1.5, "logit_bias": {"3": 2.5}, "allowed_token_ids": [3, 4],
    "bad_words": ["no"], "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [8],
    "include_stop_str_in_output": true, "skip_special_tokens": false, "include_reasoning": false,
    "structured_outputs": {"regex": "a+"}, "priority": 3, "cache_salt": "s", "timeout": 4, "max_queue_wait": 5)")) {
    ASSERT_TRUE(chat) << chat.error().message;
    const SamplingParams& sampling = chat->sampling;
    EXPECT_EQ(sampling.temperature, 0.5);
    EXPECT_EQ(sampling.top_p, 0.75);
    EXPECT_EQ(sampling.top_k, 5);
    EXPECT_EQ(sampling.min_p, 0.25);
    EXPECT_EQ(sampling.seed, 6u);
    EXPECT_EQ(sampling.repetition_penalty, 1.5);
    EXPECT_EQ(sampling.presence_penalty, 1.25);
    EXPECT_EQ(sampling.frequency_penalty, -1.5);
    EXPECT_THAT(sampling.logit_bias, ElementsAre(testing::Pair(3, 2.5f)));
    EXPECT_THAT(sampling.allowed_token_ids, testing::Optional(ElementsAre(3, 4)));
    EXPECT_THAT(chat->bad_words, ElementsAre("no"));
    EXPECT_EQ(sampling.min_tokens, 2);
    EXPECT_TRUE(sampling.ignore_eos);
    EXPECT_THAT(sampling.stop_token_ids, ElementsAre(8));
    EXPECT_TRUE(sampling.include_stop_str_in_output);
    EXPECT_FALSE(sampling.skip_special_tokens);
    EXPECT_FALSE(chat->include_reasoning);
    EXPECT_EQ(sampling.grammar, "regex:a+");
    EXPECT_EQ(chat->priority, 3);
    EXPECT_EQ(chat->cache_salt, "s");
    EXPECT_EQ(chat->timeout, to_duration(4));
    EXPECT_EQ(chat->max_queue_wait, to_duration(5));
    EXPECT_THAT(chat->ignored, IsEmpty());
  }
}

TEST(ChatBody, FormsOfTheAnswerByTheirOlderNamesAreTakenToo) {
  const std::pair<const char*, const char*> forms[] = {
      {R"("guided_json": {"type": "object"})", "json_schema:"},
      {R"("guided_regex": "a+")", "regex:"},
      {R"("guided_choice": ["a", "b"])", "ebnf:"},
      {R"("guided_grammar": "root ::= \"a\"")", "ebnf:"}};
  for (const auto& [field, source] : forms) {
    for (const auto& chat : chats(field)) {
      ASSERT_TRUE(chat) << chat.error().message;
      EXPECT_THAT(chat->sampling.grammar, StartsWith(source)) << field;
    }
  }
}

}  // namespace
}  // namespace refrain
