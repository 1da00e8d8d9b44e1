#include "runtime/text/answer/deepseek_v3.h"

#include <utility>

namespace refrain::text {
namespace {

constexpr const char* kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr const char* kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr const char* kOneCallBegin = "<｜tool▁call▁begin｜>";
constexpr const char* kOneCallEnd = "<｜tool▁call▁end｜>";
constexpr const char* kSeparator = "<｜tool▁sep｜>";
constexpr size_t kMaxCallName = 256;

}  // namespace

DeepseekV3Parser::DeepseekV3Parser() : marker_({kCallsBegin}), separator_({kSeparator}) {}

void DeepseekV3Parser::push(std::string_view text, AnswerEvents& out) {
  while (!text.empty()) {
    if (state_ == State::kContent) {
      std::string before;
      const auto found = marker_.next(text, before);
      out.content(before);
      if (!found) return;
      call_.start(marker_.marker(*found));
      any_ = false;
      expect(State::kCalls);
    } else if (state_ == State::kType) {
      read_type(text.front(), out);
      text.remove_prefix(1);
    } else if (step(text.front(), out)) {
      text.remove_prefix(1);
    }
  }
}

void DeepseekV3Parser::expect(State state) {
  state_ = state;
  if (state == State::kCalls) word_.expect({kOneCallBegin, kCallsEnd});
  if (state == State::kFence) word_.expect({"```json"});
  if (state == State::kFenceEnd) word_.expect({"```"});
  if (state == State::kCallEnd) word_.expect({kOneCallEnd});
}

bool DeepseekV3Parser::fail(AnswerEvents& out) {
  call_.fail(out);
  state_ = State::kContent;
  return false;
}

// False: the byte is not taken.
bool DeepseekV3Parser::step(char c, AnswerEvents& out) {
  if (state_ == State::kName) return read_name(c, out);
  if (state_ == State::kArguments) return read_arguments(c, out);
  return read_word(c, out);
}

// "function", or the name (V3.1).
void DeepseekV3Parser::read_type(char c, AnswerEvents& out) {
  std::string_view byte(&c, 1);
  std::string before;
  const auto found = separator_.next(byte, before);
  name_ += before;
  call_.take(before);
  if (found) {
    call_.take(separator_.marker(*found));
    fenced_ = false;
    state_ = State::kName;
  } else if (name_.size() > kMaxCallName) {
    call_.take(separator_.flush());
    fail(out);
  }
}

bool DeepseekV3Parser::read_name(char c, AnswerEvents& out) {
  if (!fenced_ && c == '{') {
    scanner_ = JsonScanner();
    state_ = State::kArguments;
    return false;
  }
  if (!std::exchange(fenced_, true)) name_.clear();
  if (c == '<' || name_.size() == kMaxCallName || (c == '\n' && name_.empty())) return fail(out);
  call_.take({&c, 1});
  if (c == '\n') {
    expect(State::kFence);
  } else {
    name_ += c;
  }
  return true;
}

bool DeepseekV3Parser::read_arguments(char c, AnswerEvents& out) {
  if (!scanner_.begun() && is_space(c)) {
    call_.take({&c, 1});
    return true;
  }
  if (!scanner_.begun() && (c != '{' || name_.empty())) return fail(out);
  const JsonScanner::Step step = scanner_.push(c);
  if (step == JsonScanner::Step::kBroken) return fail(out);
  if (!call_.begun()) call_.begin(name_, out);
  call_.take({&c, 1});
  call_.arguments({&c, 1}, out);
  if (step == JsonScanner::Step::kMore) return true;
  call_.end(out);
  expect(fenced_ ? State::kFenceEnd : State::kCallEnd);
  return true;
}

bool DeepseekV3Parser::read_word(char c, AnswerEvents& out) {
  constexpr size_t kNextCall = 0;  // of the words in kCalls
  const bool in_call = state_ == State::kCalls || state_ == State::kFence;
  const ExpectedWord::Step step = word_.push(c);
  if (step == ExpectedWord::Step::kMore) return true;
  if (in_call) call_.take(word_.taken());
  if (step == ExpectedWord::Step::kNo) {
    if (in_call) return fail(out);
    state_ = State::kContent;
    const std::string taken = word_.taken();
    push(taken, out);
    return false;
  }
  switch (state_) {
    case State::kCalls:
      name_.clear();
      state_ = word_.which() == kNextCall ? State::kType : State::kContent;
      if (state_ == State::kContent && !any_) call_.fail(out);
      break;
    case State::kFence:
      scanner_ = JsonScanner();
      state_ = State::kArguments;
      break;
    case State::kFenceEnd:
      expect(State::kCallEnd);
      break;
    default:
      call_.start({});
      any_ = true;
      expect(State::kCalls);
  }
  return true;
}

void DeepseekV3Parser::finish(AnswerEvents& out) {
  switch (state_) {
    case State::kContent:
      out.content(marker_.flush());
      break;
    case State::kFenceEnd:
    case State::kCallEnd:
      out.content(word_.taken());
      break;
    case State::kCalls:
    case State::kFence:
      call_.take(word_.taken());
      call_.fail(out);
      break;
    default:
      call_.take(separator_.flush());
      call_.fail(out);
  }
}

}  // namespace refrain::text
