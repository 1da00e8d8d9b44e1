#include "runtime/text/answer/llama3_json.h"

#include <utility>

namespace refrain::text {
namespace {

constexpr size_t kTagMarker = 1;  // of marker_

}  // namespace

void Llama3JsonParser::begin(std::string_view text) {
  call_.start(text);
  object_ = CallObject(false);
  state_ = State::kObject;
}

void Llama3JsonParser::push(std::string_view text, AnswerEvents& out) {
  while (!text.empty()) {
    if (state_ == State::kContent) {
      std::string before;
      const auto found = marker_.next(text, before);
      out.content(before);
      if (!found) return;
      if (*found == kTagMarker) {
        call_.start(marker_.marker(*found));
        state_ = State::kTag;
      } else {
        begin({});
        step('{', out);
      }
    } else if (step(text.front(), out)) {
      text.remove_prefix(1);
    }
  }
}

// False: the byte is not taken.
bool Llama3JsonParser::step(char c, AnswerEvents& out) {
  switch (state_) {
    case State::kTag:
      if (is_space(c)) {
        call_.take({&c, 1});
        return true;
      }
      object_ = CallObject(false);
      state_ = State::kObject;
      return false;
    case State::kObject: {
      const JsonScanner::Step step = object_.push(c, call_, out);
      if (step == JsonScanner::Step::kBroken) {
        call_.fail(out);
        state_ = State::kContent;
      } else if (step == JsonScanner::Step::kEnd) {
        state_ = State::kBetween;
      }
      return step != JsonScanner::Step::kBroken;
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
        state_ = State::kContent;
      }
      return false;
    case State::kContent:
      break;
  }
  return false;
}

void Llama3JsonParser::finish(AnswerEvents& out) {
  if (state_ == State::kContent) out.content(marker_.flush());
  if (state_ == State::kTag || state_ == State::kObject) call_.fail(out);
  out.content(std::exchange(between_, {}));
}

}  // namespace refrain::text
