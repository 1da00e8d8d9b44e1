#include "runtime/server/api_response.h"

#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

class ApiResponse : public testing::Test {
 protected:
  ApiResponse() : tokenizer_(*text::Tokenizer::load("tests/fixtures/models/qwen3")) {
    choice_.text = "ab";
    choice_.tokens = {{64, -0.5f, {{64, -0.5f}, {65, -1.5f}}}, {65, -0.25f, {{65, -0.25f}}}};
    choice_.finish = FinishReason::kStop;
    choice_.stop_reason = "END";
    head_ = {"id-1", "m", 17, false, true};
  }
  text::Tokenizer tokenizer_;
  ChoiceText choice_;
  AnswerHead head_;
  Usage usage_{3, 2, 1};
};

TEST_F(ApiResponse, CompletionHasOpenAIsShape) {
  const Json json = whole_answer(head_, {choice_}, usage_, tokenizer_);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["id"], "id-1");
  EXPECT_EQ(json["created"], 17);
  const Json& entry = json["choices"][0];
  EXPECT_EQ(entry["text"], "ab");
  EXPECT_EQ(entry["finish_reason"], "stop");
  EXPECT_EQ(entry["stop_reason"], "END");
  const Json& logprobs = entry["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 2u);
  EXPECT_EQ(logprobs["tokens"][0], tokenizer_.token_to_string(64));
  EXPECT_EQ(logprobs["token_logprobs"][1], -0.25f);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], count_characters(tokenizer_.token_bytes(64)));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(json["usage"]["total_tokens"], 5);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(ApiResponse, ChatHasOpenAIsShape) {
  head_.chat = true;
  const Json json = whole_answer(head_, {choice_}, usage_, tokenizer_);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "ab");
  const Json& token = json["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["logprob"], -0.5f);
  EXPECT_EQ(token["bytes"].size(), tokenizer_.token_bytes(64).size());
  EXPECT_EQ(token["top_logprobs"].size(), 2u);
}

TEST_F(ApiResponse, CallsAndReasoningStandBesideTheContent) {
  head_.chat = true;
  choice_.text.clear();
  choice_.reasoning = "Hm";
  choice_.calls = {{0, "id-a", "f", "{}"}};
  choice_.called = true;
  const Json json = whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0];
  EXPECT_EQ(json["message"],
            Json::parse(R"({"role": "assistant", "content": null, "reasoning": "Hm",
      "reasoning_content": "Hm", "tool_calls": [{"id": "id-a", "type": "function",
      "function": {"name": "f", "arguments": "{}"}}]})"));
  EXPECT_EQ(json["finish_reason"], "tool_calls");
  choice_.finish = FinishReason::kLength;  // cut off behind the call
  EXPECT_EQ(whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0]["finish_reason"],
            "length");
}

// vLLM's places: a chat's prompt beside the choices, a completion's in each of them.
TEST_F(ApiResponse, TokenIdsStandWhereVllmHasThem) {
  head_.token_ids = true;
  choice_.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{7, 8});
  const Json completion = whole_answer(head_, {choice_}, usage_, tokenizer_);
  EXPECT_EQ(completion["choices"][0]["token_ids"], (Json{64, 65}));
  EXPECT_EQ(completion["choices"][0]["prompt_token_ids"], (Json{7, 8}));
  EXPECT_FALSE(completion.contains("prompt_token_ids"));
  head_.chat = true;
  const Json chat = whole_answer(head_, {choice_}, usage_, tokenizer_);
  EXPECT_EQ(chat["choices"][0]["token_ids"], (Json{64, 65}));
  EXPECT_FALSE(chat["choices"][0].contains("prompt_token_ids"));
  EXPECT_EQ(chat["prompt_token_ids"], (Json{7, 8}));
}

TEST_F(ApiResponse, AStopTokenIsANumber) {
  choice_.stop_token = 64;
  EXPECT_EQ(whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0]["stop_reason"], 64);
}

// The sampled token is in the list whether it is among the most likely or not; a logprob of minus
// infinity is a number, and tokens of one text stay two.
TEST_F(ApiResponse, LogprobsOfCompletionsListTheSampledTokenAndKeepTokensApart) {
  head_.logprobs = true;
  const TokenId half = *tokenizer_.id_of("Ã"),
                other = *tokenizer_.id_of("Å");  // halves of characters
  choice_.tokens = {{65, -2.5f, {{64, -0.5f}}},
                    {66, -0.25f, {}},
                    {half, -1.0f, {{half, -1.0f}, {other, -INFINITY}}}};
  const Json logprobs =
      whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0]["logprobs"];
  const auto text = [this](TokenId token) { return tokenizer_.token_to_string(token); };
  EXPECT_EQ(logprobs["top_logprobs"][0], (Json{{text(65), -2.5f}, {text(64), -0.5f}}));
  EXPECT_EQ(logprobs["top_logprobs"][1], (Json{{text(66), -0.25f}}));  // logprobs: 0
  ASSERT_EQ(text(half), text(other));
  EXPECT_EQ(logprobs["top_logprobs"][2],
            (Json{{text(half), -1.0f}, {fmt::format("token_id:{}", other), -9999.0f}}));
  head_.chat = true;
  const Json chat = whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0]["logprobs"];
  EXPECT_EQ(chat["content"][0]["top_logprobs"].size(), 1u);  // as many as were asked for
  EXPECT_EQ(chat["content"][2]["top_logprobs"][1]["logprob"], -9999.0f);
}

TEST_F(ApiResponse, TokensMayBeNamedByTheirIds) {
  head_.tokens_as_ids = true;
  const Json logprobs =
      whole_answer(head_, {choice_}, usage_, tokenizer_)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"token_id:64", "token_id:65"}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].contains("token_id:65"));
}

TEST_F(ApiResponse, ErrorsCarryTypeParamAndStatus) {
  const Json bad = error_json(400, {ErrorCode::kInvalidArgument, "no", "top_p"})["error"];
  EXPECT_EQ(bad["type"], "invalid_request_error");
  EXPECT_EQ(bad["param"], "top_p");
  EXPECT_EQ(bad["code"], 400);
  EXPECT_TRUE(error_json(503, {ErrorCode::kUnavailable, "no", {}})["error"]["param"].is_null());
  EXPECT_EQ(http_status(ErrorCode::kOverloaded), 429);
  EXPECT_EQ(http_status(ErrorCode::kTooLarge), 413);
}

TEST_F(ApiResponse, BrokenUtf8IsReplacedNotThrown) {
  EXPECT_EQ(dump(Json{{"a", "x\xff"}}), "{\"a\":\"x\xef\xbf\xbd\"}");
  EXPECT_EQ(count_characters("a\xc3\xa9\xe2\x82\xac"), 3);
}

}  // namespace
}  // namespace refrain
