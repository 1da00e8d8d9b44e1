#include "runtime/engine/request.h"

#include <limits>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxLogitBias = 300;  // as many as a worker keeps for a request
constexpr size_t kMaxTokenList = 4096;
// Logits are divided by it, so one near 0 makes them infinite.
constexpr double kLeastRepetitionPenalty = 0.01;

// NaN is in no range.
Status in_range(const char* field, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return fail_field(field, "{} is {}; it must be between {} and {}", field, value, least, most);
}
Status above(const char* field, double value, double below, double most) {
  if (value > below && value <= most) return {};
  return fail_field(field, "{} is {}; it must be above {} and at most {}", field, value, below,
                    most);
}
Status at_least(const char* field, int64_t value, int64_t least) {
  if (value >= least) return {};
  return fail_field(field, "{} is {}; it must be at least {}", field, value, least);
}
Status token_in_vocabulary(const char* field, TokenId token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return {};
  return fail_field(field, "{} names token {}; the model has tokens 0 to {}", field, token,
                    vocab_size - 1);
}

Status check_tokens(const SamplingParams& params, int64_t vocab_size) {
  if (params.logit_bias.size() > kMaxLogitBias)
    return fail_field("logit_bias", "logit_bias has {} entries; at most {} are allowed",
                      params.logit_bias.size(), kMaxLogitBias);
  for (const auto& [token, bias] : params.logit_bias) {
    REFRAIN_RETURN_IF_ERROR(token_in_vocabulary("logit_bias", token, vocab_size));
    REFRAIN_RETURN_IF_ERROR(in_range("logit_bias", static_cast<double>(bias), -100, 100));
  }
  if (params.stop_token_ids.size() > kMaxTokenList)
    return fail_field("stop_token_ids", "stop_token_ids has {} entries; at most {} are allowed",
                      params.stop_token_ids.size(), kMaxTokenList);
  for (const TokenId token : params.stop_token_ids)
    REFRAIN_RETURN_IF_ERROR(token_in_vocabulary("stop_token_ids", token, vocab_size));
  if (!params.allowed_token_ids) return {};
  if (params.allowed_token_ids->empty())
    return fail_field("allowed_token_ids",
                      "allowed_token_ids is empty; leave it out to allow every token");
  if (params.allowed_token_ids->size() > static_cast<size_t>(vocab_size))
    return fail_field("allowed_token_ids", "allowed_token_ids has more entries than tokens exist");
  for (const TokenId token : *params.allowed_token_ids)
    REFRAIN_RETURN_IF_ERROR(token_in_vocabulary("allowed_token_ids", token, vocab_size));
  return {};
}

Status check_stop_strings(const SamplingParams& params) {
  if (params.stop.size() > kMaxStopStrings)
    return fail_field("stop", "stop has {} strings; at most {} are allowed", params.stop.size(),
                      kMaxStopStrings);
  for (const std::string& stop : params.stop) {
    if (stop.empty())
      return fail_field("stop", "stop holds an empty string; it would match at once");
    if (stop.size() > kMaxStopBytes)
      return fail_field("stop", "stop holds a string of {} bytes; at most {} are allowed",
                        stop.size(), kMaxStopBytes);
  }
  return {};
}

}  // namespace

Status check_sampling_params(const SamplingParams& params, int64_t vocab_size) {
  REFRAIN_RETURN_IF_ERROR(in_range("temperature", params.temperature, 0, 2));
  REFRAIN_RETURN_IF_ERROR(above("top_p", params.top_p, 0, 1));
  if (params.top_k < -1 || params.top_k > std::numeric_limits<int32_t>::max())
    return fail_field("top_k", "top_k is {}; it must be -1 or 0 (off) or positive", params.top_k);
  REFRAIN_RETURN_IF_ERROR(in_range("min_p", params.min_p, 0, 1));
  REFRAIN_RETURN_IF_ERROR(
      in_range("repetition_penalty", params.repetition_penalty, kLeastRepetitionPenalty, 10));
  REFRAIN_RETURN_IF_ERROR(in_range("presence_penalty", params.presence_penalty, -2, 2));
  REFRAIN_RETURN_IF_ERROR(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  for (const auto& [name, count] : {std::pair{"logprobs", params.logprobs},
                                    std::pair{"prompt_logprobs", params.prompt_logprobs}}) {
    if (count < -1 || count > kMaxLogprobs)
      return fail_field(name, "{} is {}; it must be between 0 and {}", name, count, kMaxLogprobs);
  }
  REFRAIN_RETURN_IF_ERROR(at_least("max_tokens", params.max_tokens, 1));
  REFRAIN_RETURN_IF_ERROR(at_least("min_tokens", params.min_tokens, 0));
  if (params.min_tokens > params.max_tokens)
    return fail_field("min_tokens", "min_tokens is {}, more than max_tokens ({})",
                      params.min_tokens, params.max_tokens);
  REFRAIN_RETURN_IF_ERROR(check_tokens(params, vocab_size));
  return check_stop_strings(params);
}

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  REFRAIN_CHECK(false, "no such finish reason: {}", static_cast<int>(reason));
}

}  // namespace refrain
