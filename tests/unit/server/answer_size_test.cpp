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
std::string error_of(const ApiRequest& request, size_t prompts, int64_t tokens) {
  const Status fits = check_answer_size(request, prompts_of(prompts, tokens));
  return fits ? "" : fits.error().field + ": " + fits.error().message;
}

TEST(AnswerSize, CountsAPromptsScoresInEachChoiceThatTellsThem_R24) {
  const auto once = request_of(R"(, "prompt_logprobs": 3)");
  EXPECT_EQ(error_of(once, 4, kMi / 16), "");
  EXPECT_THAT(error_of(once, 4, kMi / 16 + 1), StartsWith("prompt_logprobs: "));
  const auto each = request_of(R"(, "prompt_logprobs": 3, "n": 4)");
  EXPECT_EQ(error_of(each, 1, kMi / 16), "");
  EXPECT_THAT(
      error_of(each, 1, kMi / 16 + 1),
      HasSubstr("1048592 log-probabilities are asked for of prompts of 65537 tokens in each "
                "of 4 choices (n); a request is told at most 1048576"));
  // A chat tells them beside its choices.
  const auto chat = request_of(R"(, "prompt_logprobs": 3, "n": 4)", true);
  EXPECT_EQ(error_of(chat, 1, kMi / 4), "");
  EXPECT_THAT(error_of(chat, 1, kMi / 4 + 1), StartsWith("prompt_logprobs: "));
}

TEST(AnswerSize, CountsTheScoresOfAnEcho_R24) {
  const auto echo = request_of(R"(, "logprobs": 3, "echo": true, "n": 2)");
  EXPECT_EQ(error_of(echo, 1, kMi / 8), "");
  EXPECT_THAT(error_of(echo, 1, kMi / 8 + 1), StartsWith("logprobs: "));
  const auto both = request_of(R"(, "logprobs": 3, "echo": true, "prompt_logprobs": 3, "n": 2)");
  EXPECT_EQ(error_of(both, 1, kMi / 16), "");
  EXPECT_THAT(error_of(both, 1, kMi / 16 + 1), StartsWith("prompt_logprobs: "));
  EXPECT_EQ(error_of(request_of(R"(, "echo": true)"), 1, 8 * kMi), "");
}

TEST(AnswerSize, CountsAllowedTokensOfAllChoices_R24) {
  auto request = request_of(R"(, "n": 16)");
  request.sampling.allowed_token_ids.emplace(kMi / 16, 1);
  EXPECT_EQ(error_of(request, 4, 1), "");
  EXPECT_EQ(error_of(request, 5, 1),
            "allowed_token_ids: allowed_token_ids holds 65536 tokens for each of 80 choices "
            "(prompts times n); a request has at most 4194304 in all");
}

}  // namespace
}  // namespace refrain
