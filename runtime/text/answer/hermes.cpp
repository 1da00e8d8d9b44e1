#include "runtime/text/answer/hermes.h"

namespace refrain::text {

void HermesParser::push(std::string_view text, AnswerEvents& out) {
  while (!text.empty()) {
    if (state_ == State::kContent) {
      std::string before;
      const auto found = marker_.next(text, before);
      out.content(before);
      if (!found) return;
      call_.start(marker_.marker(*found));
      state_ = State::kOpen;
    } else if (step(text.front(), out)) {
      text.remove_prefix(1);
    }
  }
}

// False: the byte is not taken.
bool HermesParser::step(char c, AnswerEvents& out) {
  if (state_ == State::kOpen) {
    if (is_space(c)) {
      call_.take({&c, 1});
      return true;
    }
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
        call_.fail(out);
        state_ = State::kContent;
        return false;
    }
  }
  const ExpectedWord::Step close = close_.push(c);
  if (close == ExpectedWord::Step::kMore) return true;
  state_ = State::kContent;
  if (close == ExpectedWord::Step::kNo)
    push(close_.taken(), out);  // perhaps the next call's marker
  return close == ExpectedWord::Step::kMatch;
}

void HermesParser::finish(AnswerEvents& out) {
  switch (state_) {
    case State::kContent:
      out.content(marker_.flush());
      break;
    case State::kOpen:
    case State::kObject:
      call_.fail(out);
      break;
    case State::kClose:
      out.content(close_.taken());
      break;
  }
}

}  // namespace refrain::text
