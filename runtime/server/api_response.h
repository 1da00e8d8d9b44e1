#pragma once
// Shapes of OpenAI's answers: completion and chat objects, their stream chunks, errors. Pure
// functions; token text comes from the tokenizer.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/server/http_server.h"
#include "runtime/server/json_fields.h"

namespace refrain {

namespace text {
class Tokenizer;
}

int http_status(ErrorCode code);
// {"error": {"message", "type", "param", "code"}}
Json error_json(int status, const Error& error);
std::string error_body(int status, const std::string& message);
// The whole answer; 429 and 503 carry Retry-After: when a request like it may be taken again.
HttpReply error_reply(const Error& error, Engine& engine);

// What has been generated for one choice since the last chunk, or in all.
struct ChoiceText {
  int64_t index = 0;
  std::string text;
  std::vector<TokenOutput> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};
Json usage_json(const Usage& usage);

// Everything that is the same in all objects of one answer.
struct AnswerHead {
  std::string id;
  std::string model;
  int64_t created = 0;
  bool chat = false;
  bool logprobs = false;
};

Json whole_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices,
                  const Usage& usage, const text::Tokenizer& tokenizer);
// `text_offset`: characters of this choice sent before (completions' logprobs tell offsets).
Json stream_chunk(const AnswerHead& head, const ChoiceText& choice, int64_t text_offset,
                  const text::Tokenizer& tokenizer);
Json role_chunk(const AnswerHead& head, int64_t index);  // chat: the first chunk of a choice
Json usage_chunk(const AnswerHead& head, const Usage& usage);
std::string sse_event(const Json& json);
int64_t count_characters(const std::string& utf8);

// The JSON text; broken UTF-8 (half a character in a single token) becomes U+FFFD.
std::string dump(const Json& json);

}  // namespace refrain
