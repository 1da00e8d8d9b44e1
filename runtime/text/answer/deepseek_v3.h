#pragma once
// DeepSeek V3, R1: <｜tool▁calls▁begin｜>, then for each call <｜tool▁call▁begin｜>function
// <｜tool▁sep｜>NAME, a block ```json with the arguments and <｜tool▁call▁end｜>, and
// <｜tool▁calls▁end｜>. V3.1 has NAME<｜tool▁sep｜>ARGUMENTS between the marks of a call.

#include "runtime/text/answer/json_scanner.h"
#include "runtime/text/answer/marker_search.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

class DeepseekV3Parser final : public ToolCallParser {
 public:
  DeepseekV3Parser();
  void push(std::string_view text, AnswerEvents& out) override;
  void finish(AnswerEvents& out) override;

 private:
  enum class State : uint8_t {
    kContent,
    kCalls,  // the next call's mark or that of the end
    kType,
    kName,
    kFence,
    kArguments,
    kFenceEnd,
    kCallEnd,
  };
  bool step(char c, AnswerEvents& out);
  void read_type(char c, AnswerEvents& out);
  bool read_name(char c, AnswerEvents& out);
  bool read_arguments(char c, AnswerEvents& out);
  bool read_word(char c, AnswerEvents& out);
  void expect(State state);
  bool fail(AnswerEvents& out);

  State state_ = State::kContent;
  MarkerSearch marker_;
  MarkerSearch separator_;
  ExpectedWord word_;
  JsonScanner scanner_;
  OpenCall call_;
  std::string name_;
  bool any_ = false;     // call since the mark of the beginning
  bool fenced_ = false;  // the arguments stand in a block
};

}  // namespace refrain::text
