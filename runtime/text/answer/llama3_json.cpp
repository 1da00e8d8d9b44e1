#include "runtime/text/answer/llama3_json.h"

#include <utility>

namespace refrain::text {
namespace {

constexpr size_t kTagMarker = 1;

}  // namespace

void Llama3JsonParser::begin(std::string_view text) {
  call_.start(text);
  object_ = CallObject(false);
  state_ = State::kObject;
}

void Llama3JsonParser::open(size_t marker, AnswerEvents& out) {
  state_ = State::kTag;
  if (marker == kTagMarker) return;
  begin({});
  read('{', out);
}

bool Llama3JsonParser::read(char c, AnswerEvents& out) {
  switch (state_) {
    case State::kTag:
      if (is_space(c)) return take(c);
      object_ = CallObject(false);
      state_ = State::kObject;
      return false;
    case State::kObject: {
      const JsonScanner::Step step = object_.push(c, call_, out);
      if (step == JsonScanner::Step::kBroken) return fail(out);
      if (step == JsonScanner::Step::kEnd) state_ = State::kBetween;
      return true;
    }
    case State::kBetween:
      if (is_space(c) || c == ';') {
        between_ += c;
        return true;
      }
      if (c == '{') {
        begin(std::exchange(between_, {}));
      } else {
        out.content(std::exchange(between_, {}));
        end_reading();
      }
      return false;
  }
  return false;
}

void Llama3JsonParser::cut(AnswerEvents& out) {
  if (state_ == State::kBetween)
    out.content(std::exchange(between_, {}));
  else
    fail(out);
}

}  // namespace refrain::text
