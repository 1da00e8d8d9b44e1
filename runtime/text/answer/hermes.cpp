#include "runtime/text/answer/hermes.h"

namespace refrain::text {

void HermesParser::open(size_t /*marker*/, AnswerEvents& /*out*/) { state_ = State::kOpen; }

bool HermesParser::read(char c, AnswerEvents& out) {
  if (state_ == State::kOpen) {
    if (is_space(c)) return take(c);
    object_ = CallObject(true);
    state_ = State::kObject;
  }
  if (state_ == State::kObject) {
    switch (object_.push(c, call_, out)) {
      case JsonScanner::Step::kMore:
        return true;
      case JsonScanner::Step::kEnd:
        close_.expect({"</tool_call>"});
        state_ = State::kClose;
        return true;
      case JsonScanner::Step::kBroken:
        return fail(out);
    }
  }
  const ExpectedWord::Step close = close_.push(c);
  if (close == ExpectedWord::Step::kMore) return true;
  if (close == ExpectedWord::Step::kMatch) {
    end_reading();
    return true;
  }
  read_again(close_.taken(), out);
  return false;
}

void HermesParser::cut(AnswerEvents& out) {
  if (state_ == State::kClose)
    out.content(close_.taken());
  else
    fail(out);
}

}  // namespace refrain::text
