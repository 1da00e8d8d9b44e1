#pragma once
// What the front gives the engine and what comes back. Values; they travel between executors.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace refrain {

namespace ipc {
struct PromptScores;
}

inline constexpr int32_t kMaxLogprobs = 20;  // of a token, beside its own

// Sampling by its OpenAI / vLLM names; ranges are checked by check_sampling_params.
struct SamplingParams {
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<uint64_t> seed;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<std::vector<TokenId>> allowed_token_ids;
  std::vector<std::vector<TokenId>> bad_words;  // sequences that the answer must not have
  std::string grammar;  // that the answer keeps to (runtime/grammar); empty: none
  // Where it begins, as ipc::SlotSetup says it; by default with the first token.
  std::vector<TokenId> reasoning_end;
  TokenId reasoning_begin = -1;
  int32_t logprobs = -1;         // -1: none; n: top n beside the sampled token's
  int32_t prompt_logprobs = -1;  // the same of the prompt's tokens
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
};

// Errors name the OpenAI field and its range. `vocab_size` bounds token ids.
Status check_sampling_params(const SamplingParams& params, int64_t vocab_size);

// What a client has of an answer that another engine began.
struct BegunAnswer {
  std::vector<TokenId> tokens;
  int64_t cached_tokens = 0;  // of the prompt, as the client was told
};

struct GenerateRequest {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  bool pools = false;      // its answer is the prompt's vector; max_tokens is 1
  AdapterId adapter = 0;   // of Engine::find_adapter; 0: none
  std::string cache_salt;  // requests with different salts share no prefix blocks
  // Longest wait for the first token; the lower of it and --max-queue-wait counts.
  std::optional<Duration> max_queue_wait;
  int32_t priority = 0;  // lower ones come first; other than 0 only with that scheduling policy
  std::optional<Duration> timeout;  // it ends with an error (kDeadline) when it takes longer
  size_t output_thread = 0;         // which output executor calls its sink, modulo their number
  bool admitted = false;            // by who has the clients: no queue is too long for it
  std::optional<BegunAnswer> begun = std::nullopt;  // it goes on behind that, and waits no more
};

// The field of the error that ends a request whose grammar could not be followed in time.
inline constexpr const char* kSlowGrammarField = "response_format";

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };
const char* to_string(FinishReason reason);  // OpenAI's words: stop, length, abort, error

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};
struct TokenOutput {
  TokenId token = 0;
  float logprob = 0;              // when asked for
  std::vector<TokenLogprob> top;  // most likely first
};

// One piece of a request's answer. Outputs of a request arrive in order; exactly one has
// finish != kNone and it is the last.
struct RequestOutput {
  RequestId id = 0;
  std::vector<TokenOutput> tokens;  // new since the last output
  std::string text;                 // new text; never a part of a character
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;  // the stop string that matched, or the token's id, if any
  std::optional<TokenId> stop_token;
  std::optional<Error> error;  // of kError
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;                        // so far
  TimePoint scheduled{};                            // with a token: when its first step was planned
  std::shared_ptr<const ipc::PromptScores> prompt;  // with the first token, when asked for
  std::shared_ptr<const std::vector<float>> pooled;  // of a request that pools: all there is
};

using OutputSink = std::function<void(RequestOutput)>;  // called on an output executor

}  // namespace refrain
