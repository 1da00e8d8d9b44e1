#include "runtime/text/answer/reasoning.h"

#include <utility>

namespace refrain::text {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

}  // namespace

ThinkingStart thinking_start_after(std::string_view begun) {
  const size_t begin = begun.rfind(kThink);
  if (begin == std::string_view::npos) {
    return trimmed(begun).empty() ? ThinkingStart::kUnsaid : ThinkingStart::kClosed;
  }
  const bool closed = begun.find(kThinkEnd, begin) != std::string_view::npos;
  return closed ? ThinkingStart::kClosed : ThinkingStart::kInside;
}

ThinkingStart thinking_start(std::string_view prompt) {
  prompt = trimmed(prompt);
  if (prompt.ends_with(kThink)) return ThinkingStart::kInside;
  if (prompt.ends_with(kThinkEnd)) return ThinkingStart::kClosed;
  return ThinkingStart::kUnsaid;
}

// Inside, the mark may come once more: some models repeat it.
ReasoningSplitter::ReasoningSplitter(ThinkingStart start, bool unsaid_is_reasoning)
    : unsaid_is_reasoning_(unsaid_is_reasoning || start == ThinkingStart::kInside),
      state_(start == ThinkingStart::kClosed ? State::kRest : State::kStart) {
  begin_.expect({kThink});
}

ReasoningSplitter::Parts ReasoningSplitter::push(std::string_view text) {
  Parts parts;
  while (!text.empty() && state_ == State::kStart) {
    const ExpectedWord::Step step = begin_.push(text.front());
    if (step != ExpectedWord::Step::kNo) text.remove_prefix(1);
    if (step == ExpectedWord::Step::kMore) continue;
    const bool reasoning = step == ExpectedWord::Step::kMatch || unsaid_is_reasoning_;
    state_ = reasoning ? State::kReasoning : State::kRest;
    if (step == ExpectedWord::Step::kMatch) continue;
    if (!reasoning) parts.rest += begin_.taken();
    std::string_view taken = begin_.taken();  // shorter than the mark of the end
    if (reasoning) end_.next(taken, parts.reasoning);
  }
  if (state_ == State::kReasoning && end_.next(text, parts.reasoning)) state_ = State::kRest;
  if (state_ == State::kRest) parts.rest += text;
  return parts;
}

ReasoningSplitter::Parts ReasoningSplitter::finish() {
  Parts parts;
  if (state_ == State::kStart) {
    (unsaid_is_reasoning_ ? parts.reasoning : parts.rest) += begin_.taken();
  }
  if (state_ == State::kReasoning) parts.reasoning += end_.flush();
  return parts;
}

}  // namespace refrain::text
