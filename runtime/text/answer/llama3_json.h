#pragma once
// Llama 3.1 and later: {"name": …, "parameters": {…}} as it is, several after one another or
// divided by ; and after <|python_tag|> or not.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

class Llama3JsonParser final : public MarkedCallParser {
 public:
  Llama3JsonParser() : MarkedCallParser({"{", "<|python_tag|>"}) {}

 private:
  enum class State : uint8_t { kTag, kObject, kBetween };
  void open(size_t marker, AnswerEvents& out) override;
  bool read(char c, AnswerEvents& out) override;
  void cut(AnswerEvents& out) override;
  void begin(std::string_view text);

  State state_ = State::kTag;
  CallObject object_{false};
  std::string between_;  // text since a call
};

}  // namespace refrain::text
