#pragma once
// The server-sent events of one streamed answer. What is the same in all of them is made once; a
// token costs the escaping of its text. Immutable, so any thread.

#include <string>
#include <string_view>

#include "runtime/server/api_response.h"

namespace refrain {

class StreamEvents {
 public:
  // The tokenizer outlives it.
  StreamEvents(const AnswerHead& head, const text::Tokenizer& tokenizer);

  // `text_offset`: characters of this choice sent before.
  std::string chunk(const ChoiceText& part, int64_t text_offset) const;
  // Chat: the first event of a choice. `prompt` may be null.
  std::string role(const ChoiceText& choice) const;
  std::string usage(const Usage& usage) const;
  static std::string error(const std::string& body);
  static std::string done();

 private:
  const AnswerHead& head_;
  const text::Tokenizer& tokenizer_;
  std::string begin_;  // of an event, up to the value of "choices"
};

// Appends the text as a JSON string; broken UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);

}  // namespace refrain
