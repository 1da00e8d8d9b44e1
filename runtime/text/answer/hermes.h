#pragma once
// Hermes, Qwen2.5, Qwen3: <tool_call>{"name": …, "arguments": {…}}</tool_call>, anywhere.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

class HermesParser final : public MarkedCallParser {
 public:
  HermesParser() : MarkedCallParser({"<tool_call>"}) {}

 private:
  enum class State : uint8_t { kOpen, kObject, kClose };
  void open(size_t marker, AnswerEvents& out) override;
  bool read(char c, AnswerEvents& out) override;
  void cut(AnswerEvents& out) override;

  State state_ = State::kOpen;
  ExpectedWord close_;
  CallObject object_{true};
};

}  // namespace refrain::text
