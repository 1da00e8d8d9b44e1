#pragma once
// The formats in which models write tool calls, each read by a state machine that is fed with text
// as it comes: however it is cut, the events are the same, and the work is linear in the text. What
// begins like a call and is none comes out as content. Owned by one answer, on its thread.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/answer/answer_events.h"

namespace refrain::text {

class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  virtual void push(std::string_view text, AnswerEvents& out) = 0;
  virtual void finish(AnswerEvents& out) = 0;  // the text has ended
};

// Names of --tool-call-parser.
const std::vector<std::string>& tool_call_parser_names();
// The parser of that name; "openai" has none, its format is the answer's whole (harmony.h).
// `tools`: the request's, which say the types of arguments where the text does not.
std::unique_ptr<ToolCallParser> make_tool_call_parser(const std::string& name,
                                                      const nlohmann::json& tools);

}  // namespace refrain::text
