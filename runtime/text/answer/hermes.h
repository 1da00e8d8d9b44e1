#pragma once
// Hermes, Qwen2.5, Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, anywhere.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class HermesParser final : public ToolCallParser {
 public:
  void push(std::string_view text, AnswerEvents& out) override;
  void finish(AnswerEvents& out) override;

 private:
  enum class State : uint8_t { kContent, kOpen, kObject, kClose };
  bool step(char c, AnswerEvents& out);

  State state_ = State::kContent;
  MarkerSearch marker_{{"<tool_call>"}};
  ExpectedWord close_;
  CallObject object_{true};
  OpenCall call_;
};

}  // namespace refrain::text
