#include "runtime/server/answer_size.h"

#include <iterator>
#include <string>

namespace refrain {
namespace {

constexpr int64_t kMaxScores = 1 << 20;  // of a request's prompts, some 60 MB of JSON

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

}  // namespace

Status check_answer_size(const ApiRequest& request,
                         const std::vector<std::vector<TokenId>>& prompts) {
  return check_prompt_scores(request, tokens_of(prompts));
}

}  // namespace refrain
