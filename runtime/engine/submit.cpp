// The half of EngineCore that any thread may call: is a request acceptable, and what does the
// scheduler need to know of it.

#include <algorithm>
#include <utility>

#include "runtime/engine/engine_core.h"

namespace refrain {
namespace {

// splitmix64: different requests of one server draw differently, the same run again draws alike.
uint64_t derived_seed(uint64_t seed, RequestId id) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (id + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

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

}  // namespace

Status EngineCore::check(const GenerateRequest& request) const {
  REFRAIN_RETURN_IF_ERROR(check_sampling_params(request.sampling, model_.vocab_size));
  if (const auto& allowed = request.sampling.allowed_token_ids;
      allowed && request.sampling.min_tokens > 0) {
    const std::vector<TokenId> ends = end_tokens(request.sampling);
    if (std::ranges::all_of(
            *allowed, [&](TokenId token) { return std::ranges::find(ends, token) != ends.end(); }))
      return fail_field("min_tokens",
                        "min_tokens is {}, but every token of allowed_token_ids ends the answer",
                        request.sampling.min_tokens);
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return fail_field("prompt", "the prompt has no tokens; at least one is needed");
  if (length >= config_.worker.max_model_len)
    return fail_field(
        "prompt",
        "the prompt has {} tokens, but this model's maximum context length is {} tokens "
        "(max_model_len), answer included",
        length, config_.worker.max_model_len);
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
std::vector<TokenId> EngineCore::end_tokens(const SamplingParams& sampling) const {
  std::vector<TokenId> ends = sampling.stop_token_ids;
  if (!sampling.ignore_eos)
    ends.insert(ends.end(), model_.eos_token_ids.begin(), model_.eos_token_ids.end());
  return ends;
}

SequenceParams EngineCore::sequence_params(RequestId id, const GenerateRequest& request) const {
  const SamplingParams& sampling = request.sampling;
  SequenceParams params;
  params.max_tokens = sampling.max_tokens;
  params.ignore_eos = sampling.ignore_eos;
  params.stop_token_ids = sampling.stop_token_ids;
  params.cache_salt = request.cache_salt;
  ipc::SlotSetup& setup = params.setup;
  setup.temperature = static_cast<float>(sampling.temperature);
  setup.top_p = static_cast<float>(sampling.top_p);
  setup.min_p = static_cast<float>(sampling.min_p);
  setup.repetition_penalty = static_cast<float>(sampling.repetition_penalty);
  setup.presence_penalty = static_cast<float>(sampling.presence_penalty);
  setup.frequency_penalty = static_cast<float>(sampling.frequency_penalty);
  setup.top_k = static_cast<int32_t>(std::max<int64_t>(sampling.top_k, 0));
  setup.num_logprobs = sampling.logprobs;
  setup.seed = sampling.seed.value_or(derived_seed(config_.worker.seed, id));
  for (const auto& [token, bias] : sampling.logit_bias) {
    setup.bias_tokens.push_back(token);
    setup.bias_values.push_back(bias);
  }
  setup.has_allowed_tokens = sampling.allowed_token_ids.has_value();
  if (sampling.allowed_token_ids) set_allowed(*sampling.allowed_token_ids, setup);
  if (sampling.min_tokens > 0) {
    setup.min_tokens =
        static_cast<int32_t>(std::min<int64_t>(sampling.min_tokens, config_.worker.max_model_len));
    setup.end_tokens = end_tokens(sampling);
  }
  return params;
}

Status EngineCore::accepting() {
  {
    const std::lock_guard lock(refusal_mutex_);
    if (refusal_) return forward_error(*refusal_);
  }
  return admission_.check();
}

Result<RequestId> EngineCore::submit(GenerateRequest request, OutputSink sink) {
  REFRAIN_RETURN_IF_ERROR(check(request));
  RequestId id = 0;
  {
    const std::lock_guard lock(refusal_mutex_);
    if (refusal_) return forward_error(*refusal_);
    REFRAIN_ASSIGN_OR_RETURN(
        id,
        admission_.admit(static_cast<int64_t>(request.prompt.size()), request.sampling.max_tokens,
                         request.max_queue_wait, executor_->clock().now()));
    ++unfinished_;  // under the lock, so that a drain that begins now knows of it
  }
  Accepted accepted{id, std::move(request.prompt), {}, std::nullopt, request.output_thread};
  if (request.timeout) accepted.deadline = executor_->clock().now() + *request.timeout;
  accepted.params = sequence_params(id, request);
  outputs_->open(request.output_thread, id, static_cast<int64_t>(accepted.prompt.size()),
                 std::move(request.sampling), std::move(sink));
  executor_->post([weak = weak_from_this(), accepted = std::move(accepted)]() mutable {
    if (const auto self = weak.lock()) self->enter(std::move(accepted));
  });
  return id;
}

}  // namespace refrain
