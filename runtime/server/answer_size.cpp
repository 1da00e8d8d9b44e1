#include "runtime/server/answer_size.h"

#include <iterator>
#include <string>

namespace refrain {
namespace {

constexpr int64_t kMaxScores = 1 << 20;   // of a request's prompts, some 60 MB of JSON
constexpr int64_t kMaxAllowed = 4 << 20;  // token ids, in all choices: 16 MiB

int64_t tokens_of(const std::vector<std::vector<TokenId>>& prompts) {
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += std::ssize(prompt);
  return tokens;
}

// Log-probabilities that an answer's choice tells of a token of its prompt.
int64_t scores_of_token(const ApiRequest& request) {
  int64_t scores = request.prompt_logprobs ? 1 + int64_t{*request.prompt_logprobs} : 0;
  if (request.echo && request.logprobs) scores += 1 + int64_t{request.sampling.logprobs};
  return scores;
}

// A chat has one prompt and tells of it once, beside its choices.
Status check_prompt_scores(const ApiRequest& request, int64_t tokens) {
  const int64_t times = request.chat ? 1 : request.n;
  const int64_t told = tokens * scores_of_token(request) * times;
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

Status check_answer_size(const ApiRequest& request,
                         const std::vector<std::vector<TokenId>>& prompts) {
  REFRAIN_RETURN_IF_ERROR(check_allowed_tokens(request, std::ssize(prompts)));
  return check_prompt_scores(request, tokens_of(prompts));
}

}  // namespace refrain
