#pragma once
// The bodies of /v1/completions and /v1/chat/completions, checked. Pure functions of JSON; every
// error names the OpenAI field. Sampling fields are shared with `refrain generate`.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/engine/request.h"
#include "runtime/server/json_fields.h"

namespace refrain {

inline constexpr int64_t kMaxChoices = 16;

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct ApiRequest {
  bool chat = false;
  std::string model;
  std::vector<Prompt> prompts;  // completions
  OrderedJson template_input;   // chat: messages, tools, add_generation_prompt, kwargs
  SamplingParams sampling;
  std::optional<int64_t>
      max_tokens;  // not given: 16 (completions) or what the model has left (chat)
  int64_t n = 1;
  std::optional<Duration> max_queue_wait;
  std::optional<Duration> timeout;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool logprobs = false;
  bool add_special_tokens = true;
  bool return_token_ids = false;
};

// `ids`: token ids of "prompt" that were taken out of the body when it was parsed.
Result<ApiRequest> parse_completion_request(const Json& body, TokenLists ids = {});
Result<ApiRequest> parse_chat_request(const OrderedJson& body);

// temperature, top_p, … into `params`; used for every kind of request.
Status read_sampling_params(const Json& body, SamplingParams& params);
// A list of token ids; the error names `field`.
Result<std::vector<TokenId>> read_token_ids(const Json& value, const std::string& field);
// Checks `messages` and builds what a chat template reads.
Result<OrderedJson> read_template_input(const OrderedJson& body);

}  // namespace refrain
