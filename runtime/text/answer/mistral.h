#pragma once
// Mistral: [TOOL_CALLS] and a list of objects, or [TOOL_CALLS]name{…} with [CALL_ID]id and [ARGS]
// between name and arguments in some versions.

#include "runtime/text/answer/call_object.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class MistralParser final : public ToolCallParser {
 public:
  void push(std::string_view text, AnswerEvents& out) override;
  void finish(AnswerEvents& out) override;

 private:
  enum class State : uint8_t { kContent, kOpen, kItem, kObject, kNext, kName, kArguments };
  bool step(char c, AnswerEvents& out);
  bool name(char c, AnswerEvents& out);
  bool arguments(char c, AnswerEvents& out);
  bool object(char c, AnswerEvents& out);
  bool fail(AnswerEvents& out);
  bool take(char c) {
    call_.take({&c, 1});
    return true;
  }

  State state_ = State::kContent;
  MarkerSearch marker_{{"[TOOL_CALLS]"}};
  CallObject object_{true};
  JsonScanner scanner_;
  OpenCall call_;
  bool list_ = false;  // the object is an item of one
  std::string name_;   // with what stands between it and the arguments
  std::string next_;   // text since a list's item
};

}  // namespace refrain::text
