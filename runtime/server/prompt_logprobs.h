#pragma once
// Log-probabilities of a prompt's tokens as answers tell them: OpenAI's, in front of an echoed
// completion's own, and vLLM's prompt_logprobs. Pure functions.

#include <string>
#include <vector>

#include "runtime/server/api_response.h"

namespace refrain {

// JSON has no minus infinity, which a token has that was not allowed; vLLM tells it so.
float finite(float logprob);

// vLLM's: null, then for each further token an object from token id to logprob, rank and text: the
// token itself and the `most` likeliest ones.
Json prompt_logprobs_json(const std::vector<TokenId>& prompt, const ipc::PromptScores& scores,
                          int32_t most, const text::Tokenizer& tokenizer);

// The prompt's tokens as tokens of an answer, with the `most` likeliest ones; nothing is told of
// the first.
std::vector<TokenOutput> echoed_tokens(const std::vector<TokenId>& prompt,
                                       const ipc::PromptScores& scores, int32_t most);

// Whether every log-probability is a number: a broken model gives none.
bool are_numbers(const ipc::PromptScores& scores);
Error no_finite_logits();  // what is said of it

}  // namespace refrain
