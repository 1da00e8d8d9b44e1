#include "runtime/server/chat_answer.h"

#include <random>

#include "runtime/base/json.h"

namespace refrain {

using text::AnswerEvent;
using text::AnswerPart;

ChatAnswer::ChatAnswer(const ChatAnswerOptions& options, const nlohmann::json& tools)
    : parser_(options.format, options.thinking, tools),
      parallel_(options.parallel_tool_calls),
      include_reasoning_(options.include_reasoning),
      short_ids_(options.format.tool_call_parser == "mistral") {}

std::string ChatAnswer::call_id() const {
  thread_local std::mt19937_64 random{std::random_device{}()};
  if (!short_ids_) return fmt::format("chatcmpl-tool-{:016x}{:016x}", random(), random());
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string id;
  for (int i = 0; i < 9; ++i)
    id += kLetters[std::uniform_int_distribution<size_t>(0, kLetters.size() - 1)(random)];
  return id;
}

std::vector<AnswerEvent> ChatAnswer::read(std::string_view text, bool last) {
  std::vector<AnswerEvent> events = parser_.push(text);
  if (!last) return events;
  for (AnswerEvent& event : parser_.finish()) events.push_back(std::move(event));
  return events;
}

void ChatAnswer::add(std::string_view text, bool last, Broken broken, ChatParts& parts) {
  for (AnswerEvent& event : read(text, last)) {
    switch (event.part) {
      case AnswerPart::kReasoning:
        if (include_reasoning_) parts.reasoning += event.text;
        break;
      case AnswerPart::kContent:
        parts.content += event.text;
        break;
      case AnswerPart::kCallBegin:
        ++calls_;
        if (!left_out()) parts.calls.push_back({calls_ - 1, call_id(), std::move(event.text), {}});
        break;
      case AnswerPart::kArguments:
        if (left_out()) break;
        if (parts.calls.empty()) parts.calls.push_back({calls_ - 1, {}, {}, {}});
        parts.calls.back().arguments += event.text;
        break;
      case AnswerPart::kCallEnd:
        ++complete_calls_;
        break;
      case AnswerPart::kCallBroken:
        if (broken == Broken::kStays) {
          parts.content += left_out() ? event.text : event.rest;
          break;
        }
        if (!left_out()) parts.calls.pop_back();
        --calls_;
        parts.content += event.text;
        break;
    }
  }
}

ChatParts ChatAnswer::stream(std::string_view text, bool last) {
  ChatParts parts;
  add(text, last, Broken::kStays, parts);
  return parts;
}

void ChatAnswer::collect(std::string_view text, bool last, ChatParts& whole) {
  add(text, last, Broken::kGoes, whole);
}

}  // namespace refrain
