#pragma once
// Llama 3.1 and later: {"name": …, "parameters": {…}} as it is, several after one another or
// divided by ; and after <|python_tag|> or not.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class Llama3JsonParser final : public ToolCallParser {
 public:
  void push(std::string_view text, AnswerEvents& out) override;
  void finish(AnswerEvents& out) override;

 private:
  enum class State : uint8_t { kContent, kTag, kObject, kBetween };
  bool step(char c, AnswerEvents& out);
  void begin(std::string_view text);

  State state_ = State::kContent;
  MarkerSearch marker_{{"{", "<|python_tag|>"}};
  CallObject object_{false};
  OpenCall call_;
  std::string between_;  // text since a call
};

}  // namespace refrain::text
