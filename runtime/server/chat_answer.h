#pragma once
// One choice of a chat while its text is read: reasoning, content and tool calls, for a stream in
// parts, else as a whole. Owned by its session, under the session's lock.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/answer/answer_parser.h"

namespace refrain {

// A call, or a part of one: id and name come with its first part.
struct ToolCallPart {
  int64_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
};

struct ChatParts {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPart> calls;
};

struct ChatAnswerOptions {
  text::AnswerFormat format;
  text::ThinkingStart thinking = text::ThinkingStart::kUnsaid;
  bool parallel_tool_calls = true;  // false: calls after the first are left out
  bool include_reasoning = true;
};

class ChatAnswer {
 public:
  // `tools`: that may be called; null: none.
  ChatAnswer(const ChatAnswerOptions& options, const nlohmann::json& tools);

  // What is new with this text; `last`: it ends with it. A call that breaks off stays in a stream,
  // which has told of it, with the rest of its text as content.
  ChatParts stream(std::string_view text, bool last);
  // The same into `whole`, where such a call becomes content.
  void collect(std::string_view text, bool last, ChatParts& whole);

  bool has_called() const { return complete_calls_ > 0; }

 private:
  // What becomes of a call that breaks off.
  enum class Broken : uint8_t { kStays, kGoes };
  void add(std::string_view text, bool last, Broken broken, ChatParts& parts);
  std::vector<text::AnswerEvent> read(std::string_view text, bool last);
  std::string call_id() const;
  bool left_out() const { return calls_ > 1 && !parallel_; }

  text::AnswerParser parser_;
  bool parallel_;
  bool include_reasoning_;
  bool short_ids_;  // Mistral's templates take ids of nine letters and digits only
  int64_t calls_ = 0;
  int64_t complete_calls_ = 0;
};

}  // namespace refrain
