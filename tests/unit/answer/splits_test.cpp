// However an answer is cut into pieces, and wherever it ends, parsers give the same for the same
// text, lose nothing, and take time linear in it.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/answer/answer.h"

namespace refrain::text {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word;
  return text;
}

// What texts are made of: marks of all formats, JSON, their halves, and other text.
const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {
      "<tool_call>",
      "</tool_call>",
      "<tool_",
      "\n",
      " ",
      "{\"name\": \"a\", \"arguments\": {\"x\": [1, -2.5e3]}}",
      "{\"name\": \"f\", \"parameters\": {",
      "\"k\": \"v\\u00e9\\n\"",
      "}",
      "}}",
      "{",
      "[",
      "]",
      ",",
      ";",
      "[TOOL_CALLS]",
      "[ARGS]",
      "name",
      "<|python_tag|>",
      "<function=weather>",
      "<parameter=city>",
      "Oslo\n",
      "</parameter>",
      "</function>",
      "<parameter=days>",
      "12",
      "<｜tool▁calls▁begin｜>",
      "<｜tool▁call▁begin｜>",
      "function",
      "<｜tool▁sep｜>",
      "\n```json\n",
      "```",
      "<｜tool▁call▁end｜>",
      "<｜tool▁calls▁end｜>",
      "<think>",
      "</think>",
      "<|channel|>",
      "analysis",
      "final",
      "commentary to=functions.f",
      "<|message|>",
      "<|end|>",
      "<|start|>assistant",
      "<|call|>",
      "<|constrain|>json",
      "Straße",
      "<",
      "true",
      "null",
      "\"",
      "\\"};
  return all;
}

std::vector<AnswerFormat> formats() {
  std::vector<AnswerFormat> all = {
      {"hermes", "qwen3"}, {"deepseek_v3", "deepseek_r1"}, {{}, "openai_gptoss"}};
  for (const std::string& name : tool_call_parser_names()) all.push_back({name, {}});
  return all;
}

std::string whole_call(const std::string& parser) {
  if (parser == "mistral")
    return "[TOOL_CALLS]f{\"x\": 1} or [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]";
  if (parser.starts_with("qwen3")) {
    return "x<tool_call>\n<function=weather>\n<parameter=city>\nA\n\n</"
           "parameter>\n<parameter=days>\n7\n"
           "</parameter>\n</function>\n</tool_call>";
  }
  if (parser.starts_with("deepseek")) {
    return "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": "
           "1}\n```"
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>y";
  }
  if (parser == "openai")
    return "<|channel|>commentary to=functions.f<|message|>{\"x\": 1}<|call|><|start|>assistant"
           "<|channel|>final<|message|>y";
  return "x <tool_call>{\"name\": \"f\", \"parameters\": {\"x\": \"\\\\\"}}</tool_call> y";
}

void compare(const AnswerFormat& format, const std::string& text, std::mt19937& random) {
  SCOPED_TRACE(format.tool_call_parser + "/" + format.reasoning_parser + ": " + text);
  const Answer whole = answer_of(parser_of(format), text);
  EXPECT_EQ(answer_of(parser_of(format), text, std::vector<size_t>(text.size(), 1)), whole);
  std::vector<size_t> pieces;
  for (size_t sum = 0; sum < text.size(); sum += pieces.back())
    pieces.push_back(std::uniform_int_distribution<size_t>(0, 9)(random));
  EXPECT_EQ(answer_of(parser_of(format), text, pieces), whole);
}

TEST(AnswerParser, AnyCutGivesTheSameAnswer) {
  std::mt19937 random(17);
  for (const AnswerFormat& format : formats()) {
    const std::string call = whole_call(format.tool_call_parser);
    for (size_t end = 0; end <= call.size(); ++end) compare(format, call.substr(0, end), random);
    for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
      std::vector<std::string> text;
      for (int k = std::uniform_int_distribution(1, 14)(random); k > 0; --k) {
        text.push_back(
            words()[std::uniform_int_distribution<size_t>(0, words().size() - 1)(random)]);
      }
      if (i % 4 == 0) text.insert(text.begin(), call);
      compare(format, join(text), random);
    }
  }
}

// Letters and digits of the text, which marks are not made of alone, are in the answer.
TEST(AnswerParser, NoWordIsLost) {
  std::mt19937 random(18);
  for (const AnswerFormat& format : formats()) {
    if (format.is_harmony()) continue;  // its headers are no text
    for (int i = 0; i < 400; ++i) {
      std::string text;
      std::vector<std::string> kept;
      for (int k = 0; k < 12; ++k) {
        kept.push_back("w" + std::to_string(k) + "w");
        text += kept.back();
        text += words()[std::uniform_int_distribution<size_t>(0, words().size() - 1)(random)];
      }
      const Answer answer = answer_of(parser_of(format), text);
      std::string all = answer.reasoning + answer.content;
      for (const Call& call : answer.calls) all += call.name + call.arguments;
      for (const std::string& word : kept)
        EXPECT_NE(all.find(word), std::string::npos) << word << " of " << text;
    }
  }
}

// Long texts in small pieces: work that grows with what was read before would take hours.
TEST(AnswerParser, LongTextsTakeLinearTime) {
#if defined(REFRAIN_ASAN) || defined(REFRAIN_TSAN)  // a matter of time
  constexpr size_t kBytes = size_t{1} << 14;
#else
  constexpr size_t kBytes = size_t{1} << 18;
#endif
  for (const AnswerFormat& format : formats()) {
    for (const std::string unit : {"<tool_call>{\"name\":\"a\",", "{", "<tool_cal", "[TOOL_CALLS]",
                                   "<function=f><parameter=x>", "\n", "a", "<think>",
                                   "<｜tool▁calls▁begin｜>", "<|channel|>", "\"a\":{"}) {
      std::string text = whole_call(format.tool_call_parser).substr(0, 40);
      while (text.size() < kBytes) text += unit;
      const std::vector<size_t> pieces(text.size() / 7, 7);
      const Answer answer = answer_of(parser_of(format), text, pieces);
      EXPECT_LE(answer.content.size() + answer.reasoning.size(), text.size());
    }
  }
}

TEST(AnswerParser, ArgumentsComeAsTheyAreWritten) {
  for (const std::string& name : tool_call_parser_names()) {
    AnswerParser parser = parser_of({name, {}});
    const std::string call = whole_call(name);
    int deltas = 0;
    for (const char c : call) {
      for (const AnswerEvent& event : parser.push({&c, 1}))
        deltas += event.part == AnswerPart::kArguments;
    }
    EXPECT_GT(deltas, 3) << name;
  }
}

}  // namespace
}  // namespace refrain::text
