// From a chat's fields to its prompt: the request's own template, a message that is continued, and
// what the prompt says of the answer's reasoning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/server/text_side.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

using testing::HasSubstr;

class ChatPromptTest : public testing::Test {
 protected:
  ChatPromptTest() {
    text_.tokenizer = std::make_shared<const text::Tokenizer>(
        *text::Tokenizer::load("tests/fixtures/models/qwen3"));
    use("{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}");
  }
  void use(const char* source) {
    text_.chat_template =
        std::make_shared<const text::ChatTemplate>(*text::ChatTemplate::from_source(source));
  }
  Result<ChatPrompt> prompt(const std::string& fields) {
    auto input = read_chat_input(*parse_ordered_json("{" + fields + "}"), true);
    if (!input) return tl::make_unexpected(input.error());
    return tokenize_chat(text_, *input);
  }
  std::string rendered(const std::string& fields) {
    const auto made = prompt(fields);
    return made ? text_.tokenizer->decode(made->ids, false) : made.error().message;
  }
  TextSide text_;
};

const std::string kBegun =
    R"("continue_final_message": true, "messages": [{"role": "user", "content": "It is"}, )"
    R"({"role": "assistant", "content": )";

TEST_F(ChatPromptTest, AFinalMessageIsContinuedBehindItsText) {
  EXPECT_EQ(rendered(kBegun + R"("It is"}])"), "[user]It is[end][assistant]It is");
  EXPECT_EQ(rendered(kBegun + R"("It is "}])"), "[user]It is[end][assistant]It is ");
  use("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}");
  EXPECT_EQ(rendered(kBegun + R"("\nIt is "}])"), "[user]It is[end][assistant]It is");
  EXPECT_THAT(rendered(kBegun + R"(" "}])"), HasSubstr("has no text"));
  use("{% for m in messages %}{{ m.content | upper }}{% endfor %}");
  EXPECT_THAT(rendered(kBegun + R"("It is"}])"), HasSubstr("does not print"));
}

TEST_F(ChatPromptTest, ThePromptSaysWhetherTheAnswerBeginsWithReasoning) {
  const std::string user = R"("messages": [{"role": "user", "content": "<think>"}])";
  EXPECT_EQ(prompt(user)->thinking, text::ThinkingStart::kUnsaid);
  EXPECT_EQ(prompt(kBegun + R"("<think>So"}])")->thinking, text::ThinkingStart::kInside);
  use("[assistant]<think>\n");
  EXPECT_EQ(prompt(user)->thinking, text::ThinkingStart::kInside);
}

TEST_F(ChatPromptTest, ARequestMayBringItsTemplate) {
  const std::string user = R"("messages": [{"role": "user", "content": "a"}], "chat_template": )";
  EXPECT_EQ(rendered(user + R"("<{{ messages[0].content }}>")"), "<a>");
  const auto broken = prompt(user + R"("{% if %}")");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(broken.error().field, "chat_template");
}

}  // namespace
}  // namespace refrain
