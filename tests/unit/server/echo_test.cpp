#include "runtime/server/echo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EchoTest : public testing::Test {
 protected:
  Result<std::vector<std::string>> echoed() {
    return echoed_texts(request_, prompts_, 64, tokenizer_);
  }
  // Of the text, or of its tokens.
  void add(const std::string& text, bool as_text) {
    prompts_.push_back(*tokenizer_.encode(text, false));
    if (as_text) {
      request_.prompts.emplace_back(text);
    } else {
      request_.prompts.emplace_back(std::vector<TokenId>());
    }
  }

  const text::Tokenizer tokenizer_ = *text::Tokenizer::load("tests/fixtures/models/qwen3");
  ApiRequest request_ = [] {
    ApiRequest request;
    request.echo = true;
    return request;
  }();
  std::vector<std::vector<TokenId>> prompts_;
};

TEST_F(EchoTest, IsTheClientsOwnTextOrThatOfItsTokens) {
  add("some text", true);
  add("some ids", false);
  EXPECT_THAT(*echoed(), ElementsAre("some text", "some ids"));
  prompts_[0] = prompts_[1];  // not looked at
  EXPECT_THAT(*echoed(), ElementsAre("some text", "some ids"));
  request_.truncate_prompt_tokens = 2;  // the text may have been cut
  EXPECT_THAT(*echoed(), ElementsAre("some ids", "some ids"));
  request_.echo = false;
  EXPECT_THAT(*echoed(), ElementsAre());
}

TEST_F(EchoTest, OfAllChoicesTogetherIsBounded_R24) {
  request_.n = 16;
  request_.prompts = {std::string(size_t{4} << 20, 'a')};
  prompts_ = {{1}};
  EXPECT_EQ(echoed()->size(), 1U);
  request_.prompts.emplace_back("b");
  prompts_.push_back({1});
  const auto more = echoed();
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().field, "echo");
  EXPECT_THAT(more.error().message, HasSubstr("in each of 16 choices (n)"));
}

TEST_F(EchoTest, OfAPromptThatTheEngineRefusesIsNotMade) {
  add("a", false);
  prompts_[0].assign(64, prompts_[0].front());
  EXPECT_THAT(*echoed(), ElementsAre(""));
  prompts_[0].pop_back();
  EXPECT_THAT(*echoed(), ElementsAre(std::string(63, 'a')));
}

}  // namespace
}  // namespace refrain
