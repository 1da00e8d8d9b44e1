#pragma once
// What an answer's text turns out to be: reasoning, content and tool calls, in their order. One
// answer's, on its thread. Filled by the parsers of this folder, emptied by whoever sends it.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::text {

enum class AnswerPart : uint8_t {
  kReasoning,
  kContent,
  kCallBegin,   // text: the function's name
  kArguments,   // text: more of the JSON of the call's arguments
  kCallEnd,     // the arguments are complete
  kCallBroken,  // no call after all: `text` is what was read since its beginning
};

struct AnswerEvent {
  AnswerPart part = AnswerPart::kContent;
  std::string text;
  std::string rest;  // kCallBroken: the end of `text` that no event has told

  bool operator==(const AnswerEvent&) const = default;
};

class AnswerEvents {
 public:
  void reasoning(std::string_view text) { append(AnswerPart::kReasoning, text); }
  // White space before the first call and after a call is told only when other content follows it.
  void content(std::string_view text);
  void call_begin(std::string_view name);
  void arguments(std::string_view json) { append(AnswerPart::kArguments, json); }
  void call_end();
  void call_broken(std::string text, std::string rest);
  void finish();  // the answer's text has ended

  // What has come since the last time.
  std::vector<AnswerEvent> take() { return std::exchange(events_, {}); }

 private:
  void append(AnswerPart part, std::string_view text);

  std::vector<AnswerEvent> events_;
  std::string space_;       // held back
  bool hold_space_ = true;  // no content yet, or none since a call
  bool called_ = false;
};

// A call while it is read, with its whole text for the case that it is none.
class OpenCall {
 public:
  void start(std::string_view text) {
    text_ = text;
    told_ = 0;
    begun_ = false;
  }
  void take(std::string_view text) { text_ += text; }
  void begin(std::string_view name, AnswerEvents& out);
  // The JSON that was taken last.
  void arguments(std::string_view json, AnswerEvents& out);
  void end(AnswerEvents& out) { out.call_end(); }
  // It is content.
  void fail(AnswerEvents& out);
  bool begun() const { return begun_; }

 private:
  std::string text_;
  size_t told_ = 0;  // bytes of it that name and arguments account for
  bool begun_ = false;
};

}  // namespace refrain::text
