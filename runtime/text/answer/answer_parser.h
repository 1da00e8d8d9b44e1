#pragma once
// An answer's text to what it says: reasoning, content, tool calls, by the parsers that
// --reasoning-parser and --tool-call-parser name. Owned by one answer, on its thread.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/text/answer/answer_events.h"
#include "runtime/text/answer/reasoning.h"
#include "runtime/text/answer/tool_call_parser.h"

namespace refrain::text {

// Names of parsers; empty: none.
struct AnswerFormat {
  std::string tool_call_parser;
  std::string reasoning_parser;

  // Its marks are special tokens, which a text must keep then.
  bool is_harmony() const {
    return tool_call_parser == "openai" || reasoning_parser == "openai_gptoss";
  }
};

const std::vector<std::string>& reasoning_parser_names();
// Errors name the option: a name that no parser has, or two that do not go together.
Status check_answer_format(const AnswerFormat& format);

class AnswerParser {
 public:
  // `format` has been checked. `tools`: the request's; null: calls are not looked for.
  AnswerParser(const AnswerFormat& format, ThinkingStart start, const nlohmann::json& tools);

  // The events that are certain with this text.
  std::vector<AnswerEvent> push(std::string_view text);
  std::vector<AnswerEvent> finish();

 private:
  void pass(const ReasoningSplitter::Parts& parts);

  std::optional<ReasoningSplitter> reasoning_;
  std::unique_ptr<ToolCallParser> calls_;
  AnswerEvents events_;
};

}  // namespace refrain::text
