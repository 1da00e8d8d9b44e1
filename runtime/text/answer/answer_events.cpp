#include "runtime/text/answer/answer_events.h"

#include <utility>

namespace refrain::text {

void AnswerEvents::append(AnswerPart part, std::string_view text) {
  if (text.empty()) return;
  if (events_.empty() || events_.back().part != part) events_.push_back({part, {}, {}});
  events_.back().text += text;
}

void AnswerEvents::content(std::string_view text) {
  if (hold_space_) {
    const size_t word = text.find_first_not_of(" \t\r\n");
    if (word == std::string_view::npos) {
      space_ += text;
      return;
    }
    hold_space_ = false;
    append(AnswerPart::kContent, std::exchange(space_, {}));
  }
  append(AnswerPart::kContent, text);
}

void AnswerEvents::call_begin(std::string_view name) {
  space_.clear();
  events_.push_back({AnswerPart::kCallBegin, std::string(name), {}});
}

void AnswerEvents::call_end() {
  events_.push_back({AnswerPart::kCallEnd, {}, {}});
  hold_space_ = true;
  called_ = true;
}

void AnswerEvents::call_broken(std::string text, std::string rest) {
  events_.push_back({AnswerPart::kCallBroken, std::move(text), std::move(rest)});
  hold_space_ = false;
}

void AnswerEvents::finish() {
  if (!called_) append(AnswerPart::kContent, space_);
  space_.clear();
}

void OpenCall::begin(std::string_view name, AnswerEvents& out) {
  out.call_begin(name);
  told_ = text_.size();
  begun_ = true;
}

void OpenCall::arguments(std::string_view json, AnswerEvents& out) {
  out.arguments(json);
  told_ = text_.size();
}

void OpenCall::fail(AnswerEvents& out) {
  if (begun_) {
    std::string rest = text_.substr(told_);
    out.call_broken(std::move(text_), std::move(rest));
  } else {
    out.content(text_);
  }
  start({});
}

}  // namespace refrain::text
