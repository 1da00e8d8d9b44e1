#include "runtime/text/answer/harmony.h"

#include <utility>

namespace refrain::text {
namespace {

enum Marker : size_t { kStart, kChannel, kConstrain, kMessage, kEnd, kCall, kReturn };
constexpr size_t kMaxHeader = 1024;

// What follows `word` in a header, up to white space or a marker.
std::string_view after_word(std::string_view header, std::string_view word) {
  const size_t at = header.find(word);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + word.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

}  // namespace

HarmonyParser::HarmonyParser(bool tools)
    : tools_(tools),
      markers_({"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>",
                "<|return|>"}) {}

void HarmonyParser::push(std::string_view text, AnswerEvents& out) {
  while (!text.empty()) {
    std::string before;
    const auto found = markers_.next(text, before);
    take_text(before, out);
    if (found) take_marker(*found, out);
  }
}

void HarmonyParser::take_text(std::string_view text, AnswerEvents& out) {
  if (text.empty()) return;
  switch (state_) {
    case State::kHeader:
      return take_header(text, out);
    case State::kArguments:
      return take_arguments(text, out);
    case State::kReasoning:
      return out.reasoning(text);
    default:
      return out.content(text);
  }
}

// A header that no marker began can only name the recipient; other text is content.
void HarmonyParser::take_header(std::string_view text, AnswerEvents& out) {
  constexpr std::string_view kRecipient = "to=";
  for (size_t i = 0; i < text.size(); ++i) {
    header_ += text[i];
    std::string_view plain = header_;
    while (!plain.empty() && is_space(plain.front())) plain.remove_prefix(1);
    const bool fits = marked_ || plain.starts_with(kRecipient) || kRecipient.starts_with(plain);
    if (fits && header_.size() <= kMaxHeader) continue;
    out.content(std::exchange(header_, {}));
    state_ = State::kContent;
    return out.content(text.substr(i + 1));
  }
}

void HarmonyParser::take_arguments(std::string_view text, AnswerEvents& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool space = !scanner_.begun() && is_space(text[i]);
    const auto step = space ? JsonScanner::Step::kMore : scanner_.push(text[i]);
    if (step == JsonScanner::Step::kBroken) {
      call_.fail(out);
      state_ = State::kContent;
      return out.content(text.substr(i));
    }
    call_.take(text.substr(i, 1));
    if (space) continue;
    if (!call_.begun()) call_.begin(name_, out);
    call_.arguments(text.substr(i, 1), out);
    if (step == JsonScanner::Step::kMore) continue;
    call_.end(out);
    state_ = State::kCallRest;
    return out.content(text.substr(i + 1));
  }
}

void HarmonyParser::take_marker(size_t which, AnswerEvents& out) {
  const bool in_header = state_ == State::kHeader;
  switch (which) {
    case kMessage:
      if (!in_header) return take_text(markers_.marker(which), out);
      return begin_message(out);
    case kConstrain:
      if (!in_header) return take_text(markers_.marker(which), out);
      header_ += markers_.marker(which);
      return;
    case kChannel:
      if (!in_header) end_message(out);
      header_ += markers_.marker(which);
      state_ = State::kHeader;
      marked_ = true;
      return;
    case kStart:
      end_message(out);
      state_ = State::kHeader;
      marked_ = true;
      return;
    default:
      end_message(out);
      state_ = State::kBetween;
  }
}

void HarmonyParser::begin_message(AnswerEvents& out) {
  const std::string header = std::exchange(header_, {});
  const std::string_view recipient = after_word(header, "to=");
  constexpr std::string_view kFunctions = "functions.";
  const bool function = recipient.size() > kFunctions.size() && recipient.starts_with(kFunctions);
  if (function && tools_) {
    name_ = recipient.substr(kFunctions.size());
    scanner_ = JsonScanner();
    call_.start(header + markers_.marker(kMessage));
    state_ = State::kArguments;
  } else if (after_word(header, markers_.marker(kChannel)) == "analysis") {
    state_ = State::kReasoning;
  } else {
    if (function) out.content(header + markers_.marker(kMessage));
    state_ = State::kContent;
  }
}

void HarmonyParser::end_message(AnswerEvents& out) {
  if (state_ == State::kArguments) call_.fail(out);
  header_.clear();
}

void HarmonyParser::finish(AnswerEvents& out) {
  take_text(markers_.flush(), out);
  if (state_ == State::kArguments) call_.fail(out);
  if (state_ == State::kHeader && !marked_) out.content(std::exchange(header_, {}));
}

}  // namespace refrain::text
