#pragma once
// An answer put together from a parser's events, as a client that takes whole answers sees it.

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/text/answer/answer_parser.h"

namespace refrain::text {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Answer&) const = default;

  void take(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      switch (event.part) {
        case AnswerPart::kReasoning:
          reasoning += event.text;
          break;
        case AnswerPart::kContent:
          content += event.text;
          break;
        case AnswerPart::kCallBegin:
          calls.push_back({event.text, {}});
          break;
        case AnswerPart::kArguments:
          calls.back().arguments += event.text;
          break;
        case AnswerPart::kCallEnd:
          break;
        case AnswerPart::kCallBroken:
          calls.pop_back();
          content += event.text;
          break;
      }
    }
  }
};

inline std::ostream& operator<<(std::ostream& out, const Answer& answer) {
  out << "reasoning [" << answer.reasoning << "] content [" << answer.content << "]";
  for (const Call& call : answer.calls)
    out << " call " << call.name << " [" << call.arguments << "]";
  return out;
}

// The tools of the requests that these answers answer.
inline nlohmann::json test_tools() {
  return nlohmann::json::parse(R"([{"type": "function", "function": {"name": "weather",
    "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
      "places": {"type": "array"}, "more": {"type": ["string", "null"]}, "any": {}}}}}])");
}

inline AnswerParser parser_of(const AnswerFormat& format,
                              ThinkingStart start = ThinkingStart::kUnsaid) {
  return {format, start, format.tool_call_parser.empty() ? nlohmann::json() : test_tools()};
}

// The answer to `text` that comes in pieces of these lengths; what is left comes at the end.
inline Answer answer_of(AnswerParser parser, std::string_view text,
                        const std::vector<size_t>& pieces = {}) {
  Answer answer;
  for (const size_t piece : pieces) {
    answer.take(parser.push(text.substr(0, piece)));
    text.remove_prefix(std::min(piece, text.size()));
  }
  answer.take(parser.push(text));
  answer.take(parser.finish());
  return answer;
}

}  // namespace refrain::text
