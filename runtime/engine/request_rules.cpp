#include "runtime/engine/request_rules.h"

#include <algorithm>
#include <utility>

#include "ipc/protocol/limits.h"

namespace refrain {
namespace {

// As a list or as a mask, whichever is shorter on the wire.
void set_allowed(const std::vector<TokenId>& allowed, ipc::SlotSetup& setup) {
  const size_t words = static_cast<size_t>(std::ranges::max(allowed)) / 32 + 1;
  if (allowed.size() <= words) {
    setup.allowed_tokens = allowed;
    return;
  }
  setup.allowed_mask.assign(words, 0);
  for (const TokenId token : allowed)
    setup.allowed_mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

// A bad word of one token is a token that is not allowed; longer ones follow from what came before.
void set_bad_words(const std::vector<std::vector<TokenId>>& words, int64_t vocab_size,
                   ipc::SlotSetup& setup) {
  const auto clear = [&setup](TokenId token) {
    std::erase(setup.allowed_tokens, token);
    const auto word = static_cast<size_t>(token) / 32;
    if (word < setup.allowed_mask.size()) setup.allowed_mask[word] &= ~(1u << (token % 32));
  };
  for (const std::vector<TokenId>& word : words) {
    if (word.size() > 1) {
      setup.bad_words.insert(setup.bad_words.end(), word.begin(), word.end());
      setup.bad_words.push_back(-1);
      continue;
    }
    if (!setup.has_allowed_tokens) {
      setup.has_allowed_tokens = true;
      setup.allowed_mask.assign(static_cast<size_t>((vocab_size + 31) / 32), ~0u);
      if (vocab_size % 32 != 0) setup.allowed_mask.back() = (1u << (vocab_size % 32)) - 1;
    }
    clear(word.front());
  }
}

// Whether there are tokens, and each is one of the others; both lists may be long, and each choice
// of a request asks.
bool are_all_among(const std::vector<TokenId>& tokens, const std::vector<TokenId>& others) {
  if (tokens.empty()) return false;
  std::vector<bool> is_other(static_cast<size_t>(std::ranges::max(tokens)) + 1);
  for (const TokenId token : others)
    if (static_cast<size_t>(token) < is_other.size()) is_other[static_cast<size_t>(token)] = true;
  return std::ranges::all_of(tokens, [&](TokenId t) { return is_other[static_cast<size_t>(t)]; });
}

// Bad words leave something to say, and need no token that only the device knows.
Status check_bad_words(const SamplingParams& sampling, bool speculates) {
  std::vector<TokenId> forbidden;
  for (const std::vector<TokenId>& word : sampling.bad_words)
    if (word.size() == 1) forbidden.push_back(word.front());
  if (const auto& allowed = sampling.allowed_token_ids;
      allowed && are_all_among(*allowed, forbidden))
    return fail_field("bad_words", "bad_words leaves no token of allowed_token_ids");
  const bool follows =
      std::ranges::any_of(sampling.bad_words, [](const auto& word) { return word.size() > 1; });
  if (follows && speculates)
    return fail_field("bad_words",
                      "bad_words of several tokens and speculative decoding do not go together");
  return {};
}

}  // namespace

// splitmix64.
uint64_t derived_seed(uint64_t seed, RequestId id) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (id + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// vLLM's words.
Status RequestRules::check_logprobs(const GenerateRequest& request) const {
  const int32_t most = config_.max_logprobs;
  const SamplingParams& sampling = request.sampling;
  if (sampling.logprobs < -1 || sampling.logprobs > most)
    return fail_field("logprobs",
                      "Requested sample logprobs of {}, which is greater than max allowed: {} "
                      "(--max-logprobs)",
                      sampling.logprobs, most);
  if (sampling.prompt_logprobs < -1 || sampling.prompt_logprobs > most)
    return fail_field("prompt_logprobs",
                      "Requested prompt logprobs of {}, which is greater than max allowed: {} "
                      "(--max-logprobs)",
                      sampling.prompt_logprobs, most);
  if (sampling.prompt_logprobs >= 0 && (config_.worker.draft_model || config_.worker.max_loras > 0))
    return fail_field("prompt_logprobs",
                      "log-probabilities of a prompt are not there beside a draft model or LoRA "
                      "adapters; this server has one of them");
  const int64_t told = std::ssize(request.prompt) * (1 + sampling.prompt_logprobs);
  if (told > ipc::kMaxPromptScores)
    return fail_field("prompt_logprobs",
                      "{} log-probabilities are asked for of a prompt of {} tokens; at most {} are "
                      "told",
                      told, request.prompt.size(), ipc::kMaxPromptScores);
  return {};
}

Status RequestRules::check(const GenerateRequest& request) const {
  const bool pools = !config_.worker.pooling.empty();
  if (request.pools != pools)
    return fail_field("model", "The model does not support {}",
                      pools ? "generation: it pools its prompts (/v1/embeddings)" : "Pooling API");
  REFRAIN_RETURN_IF_ERROR(check_logprobs(request));
  REFRAIN_RETURN_IF_ERROR(check_sampling_params(request.sampling, model_.vocab_size));
  REFRAIN_RETURN_IF_ERROR(
      check_bad_words(request.sampling, config_.worker.num_speculative_tokens > 0));
  if (const auto& allowed = request.sampling.allowed_token_ids;
      allowed && request.sampling.min_tokens > 0 &&
      are_all_among(*allowed, end_tokens(request.sampling)))
    return fail_field("min_tokens",
                      "min_tokens is {}, but every token of allowed_token_ids ends the answer",
                      request.sampling.min_tokens);
  if (request.priority != 0 && config_.scheduling_policy != "priority")
    return fail_field("priority",
                      "priority is {}, but requests have none without --scheduling-policy priority",
                      request.priority);
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return fail_field("prompt", "the prompt has no tokens; at least one is needed");
  if (length >= config_.worker.max_model_len + (pools ? 1 : 0))
    return fail_field(
        "prompt",
        "the prompt has {} tokens, but this model's maximum context length is {} tokens "
        "(max_model_len){}",
        length, config_.worker.max_model_len, pools ? "" : ", answer included");
  if (const auto& begun = request.begun;
      begun && (std::ssize(begun->tokens) >= request.sampling.max_tokens ||
                length + std::ssize(begun->tokens) >= config_.worker.max_model_len))
    return fail_field("begun", "the answer's {} tokens leave no room for another one",
                      begun->tokens.size());
  if (!config_.enable_chunked_prefill && length > config_.worker.max_num_batched_tokens)
    return fail_field("prompt",
                      "the prompt has {} tokens; without chunked prefill at most "
                      "--max-num-batched-tokens ({}) can run",
                      length, config_.worker.max_num_batched_tokens);
  for (const TokenId token : request.prompt)
    if (token < 0 || token >= model_.vocab_size)
      return fail_field("prompt", "the prompt holds token {}; the model has tokens 0 to {}", token,
                        model_.vocab_size - 1);
  return {};
}

// What ends an answer by being sampled.
std::vector<TokenId> RequestRules::end_tokens(const SamplingParams& sampling) const {
  std::vector<TokenId> ends = sampling.stop_token_ids;
  if (!sampling.ignore_eos)
    ends.insert(ends.end(), model_.eos_token_ids.begin(), model_.eos_token_ids.end());
  return ends;
}

SequenceParams RequestRules::sequence_params(RequestId id, const GenerateRequest& request) const {
  const SamplingParams& sampling = request.sampling;
  SequenceParams params;
  params.max_tokens = sampling.max_tokens;
  params.ignore_eos = sampling.ignore_eos;
  params.stop_token_ids = sampling.stop_token_ids;
  params.cache_salt = request.cache_salt;
  params.adapter = request.adapter;
  params.priority = request.priority;
  ipc::SlotSetup& setup = params.setup;
  setup.temperature = static_cast<float>(sampling.temperature);
  setup.top_p = static_cast<float>(sampling.top_p);
  setup.min_p = static_cast<float>(sampling.min_p);
  setup.repetition_penalty = static_cast<float>(sampling.repetition_penalty);
  setup.presence_penalty = static_cast<float>(sampling.presence_penalty);
  setup.frequency_penalty = static_cast<float>(sampling.frequency_penalty);
  setup.top_k = static_cast<int32_t>(std::max<int64_t>(sampling.top_k, 0));
  setup.num_logprobs = sampling.logprobs;
  setup.num_prompt_logprobs = sampling.prompt_logprobs;
  setup.seed = sampling.seed.value_or(derived_seed(config_.worker.seed, id));
  for (const auto& [token, bias] : sampling.logit_bias) {
    setup.bias_tokens.push_back(token);
    setup.bias_values.push_back(bias);
  }
  setup.has_allowed_tokens = sampling.allowed_token_ids.has_value();
  if (sampling.allowed_token_ids) set_allowed(*sampling.allowed_token_ids, setup);
  set_bad_words(sampling.bad_words, model_.vocab_size, setup);
  setup.grammar.assign(sampling.grammar.begin(), sampling.grammar.end());
  setup.reasoning_begin = sampling.reasoning_begin;
  setup.reasoning_end = sampling.reasoning_end;
  if (sampling.min_tokens > 0) {
    setup.min_tokens =
        static_cast<int32_t>(std::min<int64_t>(sampling.min_tokens, config_.worker.max_model_len));
    setup.end_tokens = end_tokens(sampling);
  }
  return params;
}

}  // namespace refrain
