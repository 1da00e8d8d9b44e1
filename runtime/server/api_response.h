#pragma once
// Shapes of OpenAI's answers: completion and chat objects, errors, and the parts that they share
// with the events of streams (stream_events.h). Pure functions; token text comes from the
// tokenizer.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/server/chat_answer.h"
#include "runtime/server/http_server.h"
#include "runtime/server/json_fields.h"

namespace refrain {

namespace text {
class Tokenizer;
}

int http_status(ErrorCode code);
// A browser asks for a page.
bool wants_page(const HttpRequest& request);
// {"error": {"message", "type", "param", "code"}}
Json error_json(int status, const Error& error);
std::string error_body(int status, const std::string& message);
// The whole answer; 429 and 503 carry Retry-After: when a request like it may be taken again.
HttpReply error_reply(const Error& error, Engine& engine);

// What has been generated for one choice since the last chunk, or in all.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};
Json usage_json(const Usage& usage);

struct ChoiceText {
  int64_t index = 0;
  std::string text;
  std::vector<TokenOutput> tokens;
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;
  std::optional<TokenId> stop_token;
  std::string reasoning;  // of a chat
  std::vector<ToolCallPart> calls;
  bool called = false;  // it ends with calls, which is its reason to end
  // Where token ids or the prompt's log-probabilities are asked for; of a stream's parts the first
  // one has them.
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::shared_ptr<const ipc::PromptScores> scores;
  std::optional<Usage> usage;  // of this choice so far: of a stream's part that tells it
};

// Everything that is the same in all objects of one answer.
struct AnswerHead {
  std::string id;
  std::string model;
  int64_t created = 0;
  bool chat = false;
  bool logprobs = false;
  int32_t num_logprobs = -1;         // of echoed tokens
  int32_t num_prompt_logprobs = -1;  // prompt_logprobs; -1: not asked for
  bool echo = false;
  bool token_ids = false;      // return_token_ids
  bool tokens_as_ids = false;  // return_tokens_as_token_ids: of log-probabilities
};

Json whole_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices,
                  const Usage& usage, const text::Tokenizer& tokenizer);
// `offset`: characters of this choice before its tokens (completions' logprobs tell offsets).
Json logprobs_json(const AnswerHead& head, const ChoiceText& choice, int64_t offset,
                   const text::Tokenizer& tokenizer);
// vLLM's prompt_logprobs; null where there are none.
Json prompt_logprobs_json(const AnswerHead& head, const ChoiceText& choice,
                          const text::Tokenizer& tokenizer);
// Why the choice ended, in OpenAI's word.
const char* finish_word(const ChoiceText& choice);
Json stop_reason_json(const ChoiceText& choice);
std::vector<TokenId> token_ids(const ChoiceText& choice);
int64_t count_characters(const std::string& utf8);

// The JSON text; broken UTF-8 (half a character in a single token) becomes U+FFFD.
std::string dump(const Json& json);

}  // namespace refrain
