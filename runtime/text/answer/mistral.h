#pragma once
// Mistral: [TOOL_CALLS] and a list of objects, or [TOOL_CALLS]name{…} with [CALL_ID]id and [ARGS]
// between name and arguments in some versions.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

class MistralParser final : public MarkedCallParser {
 public:
  MistralParser() : MarkedCallParser({"[TOOL_CALLS]"}) {}

 private:
  enum class State : uint8_t { kOpen, kItem, kObject, kNext, kName, kArguments };
  void open(size_t marker, AnswerEvents& out) override;
  bool read(char c, AnswerEvents& out) override;
  void cut(AnswerEvents& out) override;
  bool name(char c, AnswerEvents& out);
  bool arguments(char c, AnswerEvents& out);
  bool object(char c, AnswerEvents& out);

  State state_ = State::kOpen;
  CallObject object_{true};
  JsonScanner scanner_;
  bool list_ = false;  // the object is an item of one
  std::string name_;   // with what stands between it and the arguments
  std::string next_;   // text since a list's item
};

}  // namespace refrain::text
