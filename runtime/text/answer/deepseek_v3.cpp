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

DeepseekV3Parser::DeepseekV3Parser() : MarkedCallParser({kCallsBegin}), separator_({kSeparator}) {}

void DeepseekV3Parser::open(size_t /*marker*/, AnswerEvents& /*out*/) {
  any_ = false;
  expect(State::kCalls);
}

void DeepseekV3Parser::expect(State state) {
  state_ = state;
  if (state == State::kCalls) word_.expect({kOneCallBegin, kCallsEnd});
  if (state == State::kFence) word_.expect({"```json"});
  if (state == State::kFenceEnd) word_.expect({"```"});
  if (state == State::kCallEnd) word_.expect({kOneCallEnd});
}

bool DeepseekV3Parser::read(char c, AnswerEvents& out) {
  if (state_ == State::kType) {
    read_type(c, out);
    return true;
  }
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
  take(c);
  if (c == '\n') {
    expect(State::kFence);
  } else {
    name_ += c;
  }
  return true;
}

bool DeepseekV3Parser::read_arguments(char c, AnswerEvents& out) {
  if (!scanner_.begun() && is_space(c)) {
    take(c);
    return true;
  }
  if (!scanner_.begun() && (c != '{' || name_.empty())) return fail(out);
  const JsonScanner::Step step = scanner_.push(c);
  if (step == JsonScanner::Step::kBroken) return fail(out);
  if (!call_.begun()) call_.begin(name_, out);
  take(c);
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
    read_again(std::string(word_.taken()), out);
    return false;
  }
  switch (state_) {
    case State::kCalls:
      name_.clear();
      state_ = State::kType;
      if (word_.which() == kNextCall) break;
      end_reading();
      if (!any_) call_.fail(out);
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

void DeepseekV3Parser::cut(AnswerEvents& out) {
  switch (state_) {
    case State::kFenceEnd:
    case State::kCallEnd:
      out.content(word_.taken());
      break;
    case State::kCalls:
    case State::kFence:
      call_.take(word_.taken());
      fail(out);
      break;
    default:
      call_.take(separator_.flush());
      fail(out);
  }
}

}  // namespace refrain::text
