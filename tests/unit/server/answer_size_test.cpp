// What a request may be told beside text (R-24).
#include "runtime/server/answer_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMi = 1 << 20;

ApiRequest request_of(const std::string& fields, bool chat = false) {
  const std::string prompt =
      chat ? R"("messages": [{"role": "user", "content": "a"}])" : R"("prompt": "a")";
  const auto request = chat ? parse_chat_request(*parse_ordered_json("{" + prompt + fields + "}"))
                            : parse_completion_request(*parse_json("{" + prompt + fields + "}"));
  EXPECT_TRUE(request) << request.error().message;
  return request.value_or(ApiRequest());
}

std::vector<std::vector<TokenId>> prompts_of(size_t count, int64_t tokens) {
  return std::vector(count, std::vector<TokenId>(static_cast<size_t>(tokens), 7));
}

// Field and message; empty: it fits.
std::string fault_of(const ApiRequest& request, size_t prompts, int64_t tokens,
                     int64_t max_model_len = kMi) {
  const Status fits = check_answer_size(request, prompts_of(prompts, tokens), max_model_len);
  return fits ? "" : fits.error().field + ": " + fits.error().message;
}

TEST(AnswerSize, CountsAPromptsScoresInEachChoiceThatTellsThem_R24) {
  const auto once = request_of(R"(, "prompt_logprobs": 3)");
  EXPECT_EQ(fault_of(once, 4, kMi / 16), "");
  EXPECT_THAT(fault_of(once, 4, kMi / 16 + 1), StartsWith("prompt_logprobs: "));
  const auto each = request_of(R"(, "prompt_logprobs": 3, "n": 4)");
  EXPECT_EQ(fault_of(each, 1, kMi / 16), "");
  EXPECT_THAT(
      fault_of(each, 1, kMi / 16 + 1),
      HasSubstr("1048592 log-probabilities are asked for of prompts of 65537 tokens in each "
                "of 4 choices (n); a request is told at most 1048576"));
  // A chat tells them beside its choices.
  const auto chat = request_of(R"(, "prompt_logprobs": 3, "n": 4)", true);
  EXPECT_EQ(fault_of(chat, 1, kMi / 4), "");
  EXPECT_THAT(fault_of(chat, 1, kMi / 4 + 1), StartsWith("prompt_logprobs: "));
}

TEST(AnswerSize, CountsTheScoresOfAnEcho_R24) {
  const auto echo = request_of(R"(, "logprobs": 3, "echo": true, "n": 2)");
  EXPECT_EQ(fault_of(echo, 1, kMi / 8), "");
  EXPECT_THAT(fault_of(echo, 1, kMi / 8 + 1), StartsWith("logprobs: "));
  const auto both = request_of(R"(, "logprobs": 3, "echo": true, "prompt_logprobs": 3, "n": 2)");
  EXPECT_EQ(fault_of(both, 1, kMi / 16), "");
  EXPECT_THAT(fault_of(both, 1, kMi / 16 + 1), StartsWith("prompt_logprobs: "));
  EXPECT_EQ(fault_of(request_of(R"(, "echo": true)"), 1, 8 * kMi), "");
}

TEST(AnswerSize, CountsAllowedTokensOfAllChoices_R24) {
  auto request = request_of(R"(, "n": 16)");
  request.sampling.allowed_token_ids.emplace(kMi / 2, 1);
  EXPECT_EQ(fault_of(request, 4, 1), "");
  EXPECT_EQ(fault_of(request, 5, 1),
            "allowed_token_ids: allowed_token_ids holds 524288 tokens for each of 80 choices "
            "(prompts times n); a request has at most 33554432 in all");
}

TEST(AnswerSize, CountsWhatAWholeAnswerMayTellOfItsTokens_R24) {
  const auto scored = request_of(R"(, "logprobs": 3, "n": 4, "max_tokens": 65536)");
  EXPECT_EQ(fault_of(scored, 4, 1), "");
  EXPECT_EQ(
      fault_of(scored, 5, 1),
      "logprobs: logprobs and return_token_ids ask for 5242880 numbers, of prompts of 5 tokens "
      "and of 1310720 generated tokens (max_tokens in each of n choices); an answer that is "
      "not streamed tells at most 4194304");
  EXPECT_EQ(fault_of(scored, 5, 1, 4096), "");  // there is no more room
  auto stream = scored;
  stream.stream = true;
  EXPECT_EQ(fault_of(stream, 5, 1), "");

  const auto ids = request_of(R"(, "return_token_ids": true, "n": 16, "max_tokens": 65535)");
  EXPECT_EQ(fault_of(ids, 4, 1), "");  // with one id of the prompt in each choice
  EXPECT_THAT(fault_of(ids, 4, 2), StartsWith("return_token_ids: "));
  const auto chat = request_of(R"(, "return_token_ids": true, "n": 16)", true);
  EXPECT_EQ(fault_of(chat, 1, kMi), "");  // its prompt's once
}

TEST(AnswerSize, LetsAWholeContextBeTold) {
  for (const bool chat : {false, true}) {
    const std::string top =
        chat ? R"(, "logprobs": true, "top_logprobs": 20)" : R"(, "logprobs": 20)";
    const auto most =
        request_of(top + R"(, "return_token_ids": true, "max_tokens": 2147483647)", chat);
    EXPECT_EQ(fault_of(most, 1, 1, 131072), "");
  }
  // What an answer that may be as long as it will comes to is seen while it comes.
  const auto open = request_of(R"(, "logprobs": true, "top_logprobs": 20, "n": 16)", true);
  EXPECT_EQ(fault_of(open, 1, 1, kMi), "");
  EXPECT_TRUE(check_told(open, 1, 4 * kMi / 21));
  EXPECT_FALSE(check_told(open, 1, 4 * kMi / 21 + 1));
}

}  // namespace
}  // namespace refrain
