#include "runtime/server/answer_size.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace refrain {
namespace {

constexpr int64_t kMaxScores = 1 << 20;  // of a request's prompts, some 60 MB of JSON
constexpr int64_t kMaxTold = 4 << 20;    // of generated tokens, and ids
// Token ids in all choices, 128 MiB: a whole vocabulary of 128 Ki for each of 256.
constexpr int64_t kMaxAllowed = 32 << 20;

// Of a token, with its own; the engine refuses more.
int64_t scores_at(int32_t top) { return 1 + int64_t{std::min(top, kMaxLogprobs)}; }

// A chat has one prompt and tells of it once, beside its choices.
int64_t times_told(const ApiRequest& request) { return request.chat ? 1 : request.n; }

Status check_prompt_scores(const ApiRequest& request, int64_t tokens) {
  int64_t each = request.prompt_logprobs ? scores_at(*request.prompt_logprobs) : 0;
  if (request.echo && request.logprobs) each += scores_at(request.sampling.logprobs);
  const int64_t times = times_told(request), told = tokens * each * times;
  if (told <= kMaxScores) return {};
  return fail_field(
      request.prompt_logprobs ? "prompt_logprobs" : "logprobs",
      "{} log-probabilities are asked for of prompts of {} tokens{}; a request is told at most {}",
      told, tokens, times > 1 ? fmt::format(" in each of {} choices (n)", times) : "", kMaxScores);
}

// Every choice has a list of its own.
Status check_allowed_tokens(const ApiRequest& request, int64_t prompts) {
  const auto& allowed = request.sampling.allowed_token_ids;
  const int64_t choices = prompts * request.n;
  if (!allowed || std::ssize(*allowed) * choices <= kMaxAllowed) return {};
  return fail_field("allowed_token_ids",
                    "allowed_token_ids holds {} tokens for each of {} choices (prompts times n); "
                    "a request has at most {} in all",
                    allowed->size(), choices, kMaxAllowed);
}

}  // namespace

Status check_told(const ApiRequest& request, int64_t prompt_tokens, int64_t generated) {
  if (request.stream) return {};
  int64_t each = request.logprobs ? scores_at(request.sampling.logprobs) : 0, told = 0;
  if (request.return_token_ids) {
    ++each;
    told = prompt_tokens * times_told(request);
  }
  told += generated * each;
  if (told <= kMaxTold) return {};
  return fail_field(request.logprobs ? "logprobs" : "return_token_ids",
                    "logprobs and return_token_ids ask for {} numbers, of prompts of {} tokens and "
                    "of {} generated tokens (max_tokens in each of n choices); an answer that is "
                    "not streamed tells at most {}",
                    told, prompt_tokens, generated, kMaxTold);
}

Status check_answer_size(const ApiRequest& request,
                         const std::vector<std::vector<TokenId>>& prompts, int64_t max_model_len) {
  int64_t tokens = 0, generated = 0;
  for (const auto& prompt : prompts) {
    const int64_t room = std::max<int64_t>(max_model_len - std::ssize(prompt), 0);
    tokens += std::ssize(prompt);
    if (request.max_tokens) generated += std::min(*request.max_tokens, room) * request.n;
  }
  REFRAIN_RETURN_IF_ERROR(check_allowed_tokens(request, std::ssize(prompts)));
  REFRAIN_RETURN_IF_ERROR(check_prompt_scores(request, tokens));
  return check_told(request, tokens, generated);
}

}  // namespace refrain
