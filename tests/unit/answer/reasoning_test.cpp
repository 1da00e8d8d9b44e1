// Reasoning: where it begins is the prompt's or the answer's word, and the two parsers of one
// answer work together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/answer/answer.h"

namespace refrain::text {
namespace {

using testing::HasSubstr;

Answer read(const AnswerFormat& format, ThinkingStart start, std::string_view text) {
  return answer_of(parser_of(format, start), text);
}

TEST(Reasoning, ThePromptSaysWhereTheAnswerBegins) {
  EXPECT_EQ(thinking_start("<｜Assistant｜><think>\n"), ThinkingStart::kInside);
  EXPECT_EQ(thinking_start("assistant\n<think>\n\n</think>\n\n"), ThinkingStart::kClosed);
  EXPECT_EQ(thinking_start("user\n<think></think> x<|im_end|>assistant\n"), ThinkingStart::kUnsaid);
  EXPECT_EQ(thinking_start_after(""), ThinkingStart::kUnsaid);
  EXPECT_EQ(thinking_start_after("The answer"), ThinkingStart::kClosed);
  EXPECT_EQ(thinking_start_after("<think>\nPerhaps"), ThinkingStart::kInside);
  EXPECT_EQ(thinking_start_after("<think>\nYes.</think> It"), ThinkingStart::kClosed);
}

TEST(Reasoning, Qwen3ReasonsWhereItSaysSo) {
  const AnswerFormat qwen3{{}, "qwen3"};
  EXPECT_EQ(read(qwen3, ThinkingStart::kUnsaid, "<think>\nHm.\n</think>\n\nYes."),
            (Answer{"\nHm.\n", "\n\nYes.", {}}));
  EXPECT_EQ(read(qwen3, ThinkingStart::kInside, "Hm.</think>Yes."), (Answer{"Hm.", "Yes.", {}}));
  EXPECT_EQ(read(qwen3, ThinkingStart::kInside, "Cut off"), (Answer{"Cut off", "", {}}));
  EXPECT_EQ(read(qwen3, ThinkingStart::kUnsaid, "Yes."), (Answer{"", "Yes.", {}}));
  EXPECT_EQ(read(qwen3, ThinkingStart::kUnsaid, "  <b>"), (Answer{"", "  <b>", {}}));
  EXPECT_EQ(read(qwen3, ThinkingStart::kClosed, "<think> is a tag"),
            (Answer{"", "<think> is a tag", {}}));
}

TEST(Reasoning, DeepseekR1ReasonsUntilItSaysOtherwise) {
  const AnswerFormat r1{{}, "deepseek_r1"};
  EXPECT_EQ(read(r1, ThinkingStart::kUnsaid, "Hm.</think>Yes."), (Answer{"Hm.", "Yes.", {}}));
  EXPECT_EQ(read(r1, ThinkingStart::kUnsaid, "<think>Hm.</think>Yes."),
            (Answer{"Hm.", "Yes.", {}}));
  EXPECT_EQ(read(r1, ThinkingStart::kUnsaid, "\n</think>Yes."), (Answer{"\n", "Yes.", {}}));
  EXPECT_EQ(read(r1, ThinkingStart::kUnsaid, "Cut </thi"), (Answer{"Cut </thi", "", {}}));
  EXPECT_EQ(read(r1, ThinkingStart::kClosed, "Yes."), (Answer{"", "Yes.", {}}));
}

TEST(Reasoning, CallsAreReadBehindIt) {
  EXPECT_EQ(
      read({"hermes", "qwen3"}, ThinkingStart::kUnsaid,
           "<think>\n<tool_call>?\n</think>\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n"
           "</tool_call>"),
      (Answer{"\n<tool_call>?\n", "", {{"a", "{}"}}}));
}

TEST(Reasoning, ParsersThatDoNotGoTogetherAreRefused) {
  EXPECT_TRUE(check_answer_format({"hermes", "qwen3"}));
  EXPECT_TRUE(check_answer_format({"openai", "openai_gptoss"}));
  EXPECT_TRUE(check_answer_format({}));
  EXPECT_THAT(check_answer_format({"hermes", "openai_gptoss"}).error().message,
              HasSubstr("openai_gptoss"));
  EXPECT_THAT(check_answer_format({"none", {}}).error().message, HasSubstr("there are hermes, "));
  EXPECT_THAT(check_answer_format({{}, "r2"}).error().message, HasSubstr("deepseek_r1"));
}

}  // namespace
}  // namespace refrain::text
