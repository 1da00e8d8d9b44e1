#pragma once
// DeepSeek V3, R1: <｜tool▁calls▁begin｜>, then for each call <｜tool▁call▁begin｜>function
// <｜tool▁sep｜>NAME, a block ```json with the arguments and <｜tool▁call▁end｜>, and
// <｜tool▁calls▁end｜>. V3.1 has NAME<｜tool▁sep｜>ARGUMENTS between the marks of a call.

#include "runtime/text/answer/json_scanner.h"
#include "runtime/text/answer/marked_call_parser.h"

namespace refrain::text {

class DeepseekV3Parser final : public MarkedCallParser {
 public:
  DeepseekV3Parser();

 private:
  enum class State : uint8_t {
    kCalls,  // the next call's mark or that of the end
    kType,
    kName,
    kFence,
    kArguments,
    kFenceEnd,
    kCallEnd,
  };
  void open(size_t marker, AnswerEvents& out) override;
  bool read(char c, AnswerEvents& out) override;
  void cut(AnswerEvents& out) override;
  void read_type(char c, AnswerEvents& out);
  bool read_name(char c, AnswerEvents& out);
  bool read_arguments(char c, AnswerEvents& out);
  bool read_word(char c, AnswerEvents& out);
  void expect(State state);

  State state_ = State::kCalls;
  MarkerSearch separator_;
  ExpectedWord word_;
  JsonScanner scanner_;
  std::string name_;
  bool any_ = false;     // call since the mark of the beginning
  bool fenced_ = false;  // the arguments stand in a block
};

}  // namespace refrain::text
