#include "runtime/server/prompt_logprobs.h"

#include <algorithm>
#include <cmath>

#include "ipc/protocol/messages.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// [first, last) of the likeliest tokens of entry `at`, at most `most`.
struct TopRange {
  size_t first, last;
};
TopRange tops_of(const ipc::PromptScores& scores, size_t at, int32_t most) {
  const auto first = static_cast<size_t>(scores.top_offsets[at]);
  const auto last = static_cast<size_t>(scores.top_offsets[at + 1]);
  return {first, std::min(last, first + static_cast<size_t>(std::max(most, 0)))};
}

}  // namespace

float finite(float logprob) {
  constexpr float kLeast = -9999.0f;
  return std::max(logprob, kLeast);
}

bool are_numbers(const ipc::PromptScores& scores) {
  return std::ranges::none_of(scores.logprobs, [](float logprob) { return std::isnan(logprob); });
}

Error no_finite_logits() {
  return {ErrorCode::kInternal, "the model gave no finite logits for the prompt", {}};
}

Json prompt_logprobs_json(const std::vector<TokenId>& prompt, const ipc::PromptScores& scores,
                          int32_t most, const text::Tokenizer& tokenizer) {
  Json list = Json::array({nullptr});
  const auto entry = [&](TokenId token, float logprob, int64_t rank) {
    return Json{{"logprob", finite(logprob)},
                {"rank", rank},
                {"decoded_token", tokenizer.token_to_string(token)}};
  };
  for (size_t at = 0; at < scores.logprobs.size(); ++at) {
    const TokenId own = prompt[at + 1];
    Json tokens = {{std::to_string(own), entry(own, scores.logprobs[at], scores.ranks[at])}};
    const TopRange tops = tops_of(scores, at, most);
    for (size_t i = tops.first; i < tops.last; ++i) {
      const TokenId token = scores.top_tokens[i];
      if (token == own) continue;
      tokens[std::to_string(token)] =
          entry(token, scores.top_logprobs[i], static_cast<int64_t>(i - tops.first) + 1);
    }
    list.push_back(std::move(tokens));
  }
  return list;
}

std::vector<TokenOutput> echoed_tokens(const std::vector<TokenId>& prompt,
                                       const ipc::PromptScores& scores, int32_t most) {
  std::vector<TokenOutput> tokens = {{prompt.front(), 0, {}}};
  for (size_t at = 0; at < scores.logprobs.size(); ++at) {
    tokens.push_back({prompt[at + 1], scores.logprobs[at], {}});
    TokenOutput& token = tokens.back();
    const TopRange tops = tops_of(scores, at, most);
    for (size_t i = tops.first; i < tops.last; ++i)
      token.top.push_back({scores.top_tokens[i], scores.top_logprobs[i]});
  }
  return tokens;
}

}  // namespace refrain
