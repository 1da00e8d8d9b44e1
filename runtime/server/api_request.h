#pragma once
// The bodies of /v1/completions and /v1/chat/completions, checked. Pure functions of JSON; every
// error names the OpenAI field. Sampling fields are shared with `refrain generate`.

#include <initializer_list>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/config/engine_config.h"
#include "runtime/engine/request.h"
#include "runtime/server/chat_input.h"
#include "runtime/server/json_fields.h"
#include "runtime/text/answer/reasoning.h"

namespace refrain {

inline constexpr int64_t kMaxChoices = 16;

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// What becomes of the vectors of a model that pools.
struct PoolingRequest {
  enum class Kind : uint8_t { kEmbeddings, kPooling, kScore, kRerank };
  Kind kind = Kind::kEmbeddings;
  bool base64 = false;
  bool normalize = true;
  size_t dimensions = 0;               // the first so many numbers; 0: all
  size_t num_queries = 0;              // kScore, kRerank: these prompts come before the others
  std::vector<std::string> documents;  // kRerank: told with their scores
  size_t top_n = 0;                    // of these; 0: all
  const char* documents_field() const {
    return kind == Kind::kEmbeddings || kind == Kind::kPooling ? "input" : "documents";
  }
};

struct ApiRequest {
  bool chat = false;
  std::string model;
  std::vector<Prompt> prompts;                                  // completions
  ChatInput chat_input;                                         // chat
  text::ThinkingStart thinking = text::ThinkingStart::kUnsaid;  // known when it is rendered
  Json tools;                     // that the answer may call; null: none
  bool forces_tool_call = false;  // the answer is a call, as structured_output.h writes it
  bool parallel_tool_calls = true;
  bool include_reasoning = true;
  SamplingParams sampling;
  std::vector<std::string> bad_words;  // become tokens when the prompts do
  std::optional<int64_t>
      max_tokens;  // not given: 16 (completions) or what the model has left (chat)
  int64_t n = 1;
  int32_t priority = 0;
  std::string cache_salt;  // besides the key's
  std::optional<Duration> max_queue_wait;
  std::optional<Duration> timeout;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with every part of a stream
  bool echo = false;
  bool logprobs = false;
  std::optional<int32_t> prompt_logprobs;
  bool add_special_tokens = true;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<PoolingRequest> pooling;          // none: text is generated
  std::optional<int64_t> truncate_prompt_tokens;  // -1: what fits
  std::vector<std::string> ignored;               // names of fields that nothing reads
};

// What a request of every kind brings to the engine beside its sampling.
GenerateRequest begin_request(const ApiRequest& request, std::vector<TokenId> prompt,
                              std::string salt_of_key, size_t output_thread);

// What the server's options say of requests.
struct RequestRules {
  GenerationDefaults defaults;
  bool auto_tool_choice = false;
  bool trust_chat_template = false;
};
RequestRules request_rules(const EngineConfig& config);

// `ids`: token ids of "prompt" that were taken out of the body when it was parsed.
Result<ApiRequest> parse_completion_request(const Json& body, TokenLists ids = {},
                                            const RequestRules& rules = {});
Result<ApiRequest> parse_chat_request(const OrderedJson& body, const RequestRules& rules = {});

// What both kinds of request have; of max_tokens' names the last one given counts.
Status read_common(const Json& body, const RequestRules& rules, ApiRequest& request);
Status read_max_tokens(const Json& body, std::initializer_list<const char*> names,
                       const RequestRules& rules, ApiRequest& request);
// Sampling defaults into `params`.
void apply_defaults(const GenerationDefaults& defaults, SamplingParams& params);
// temperature, top_p, … into `params`; used for every kind of request.
Status read_sampling_params(const Json& body, SamplingParams& params);
// One prompt or several, as "prompt" and "input" have them; `ids` were taken out of the body when
// it was parsed.
Status read_prompts(const Json& value, const std::string& field, TokenLists ids,
                    std::vector<Prompt>& prompts);
// A number of seconds.
std::optional<Duration> read_duration(JsonFields& fields, const char* name);
// A list of token ids; the error names `field`.
Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& field);
// The same of a list whose ids were taken out when it was parsed: what is still there is none.
Result<std::vector<TokenId>> rest_of_ids(const Json& rest, const std::string& field,
                                         std::vector<TokenId> taken);

}  // namespace refrain
