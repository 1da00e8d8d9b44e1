#pragma once
// The events of one answer as they arrive ("data: …" lines): which of them carry tokens, what the
// last ones say. Feeding it costs a search a line; only what must be looked into is parsed. Pure.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace refrain {

class EventReader {
 public:
  explicit EventReader(std::function<void()> on_tokens) : on_tokens_(std::move(on_tokens)) {}

  void feed(std::string_view bytes);

  int64_t input_tokens() const { return input_tokens_; }
  // As the server counts them; without that each event that carries tokens counts for one.
  int64_t output_tokens() const { return counted_ ? output_tokens_ : events_; }
  bool done() const { return done_; }  // [DONE] came
  const std::string& error() const { return error_; }

 private:
  void line(std::string_view line);
  void event(std::string_view data);

  std::function<void()> on_tokens_;
  std::string rest_;  // a line that has not ended
  int64_t events_ = 0, input_tokens_ = 0, output_tokens_ = 0;
  bool counted_ = false, done_ = false;
  std::string error_;
};

// The sentence in an OpenAI-style error, or the beginning of what is none.
std::string error_text(std::string_view body);

}  // namespace refrain
