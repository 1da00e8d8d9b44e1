#pragma once
// gpt-oss: an answer is messages <|start|>role to=recipient<|channel|>name <|constrain|>json
// <|message|>text<|end|>. Analysis is reasoning, a message to functions.NAME a call, all else
// content. Reads the whole answer: reasoning parser openai_gptoss and tool parser openai in one.

#include "runtime/text/answer/json_scanner.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class HarmonyParser final : public ToolCallParser {
 public:
  // Without tools a message to a function is content.
  explicit HarmonyParser(bool tools);
  void push(std::string_view text, AnswerEvents& out) override;
  void finish(AnswerEvents& out) override;

 private:
  enum class State : uint8_t { kBetween, kHeader, kReasoning, kContent, kArguments, kCallRest };
  void take_text(std::string_view text, AnswerEvents& out);
  void take_header(std::string_view text, AnswerEvents& out);
  void take_arguments(std::string_view text, AnswerEvents& out);
  void take_marker(size_t which, AnswerEvents& out);
  void begin_message(AnswerEvents& out);
  void end_message(AnswerEvents& out);

  bool tools_;
  State state_ = State::kHeader;  // the prompt ends with <|start|>assistant
  bool marked_ = false;           // a marker began this header
  MarkerSearch markers_;
  std::string header_;
  std::string name_;
  JsonScanner scanner_;
  OpenCall call_;
};

}  // namespace refrain::text
