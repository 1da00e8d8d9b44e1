#include "runtime/grammar/grammar_trial.h"

#include <time.h>

#include <random>
#include <vector>

namespace refrain {
namespace {

double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

bool allows(const std::vector<uint32_t>& mask, TokenId token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

// Those that may follow; an end only where nothing else may.
std::vector<TokenId> tokens_of(std::vector<uint32_t>& mask, int64_t vocab_size,
                               const std::vector<TokenId>& ends) {
  std::vector<TokenId> tokens;
  for (const TokenId end : ends) {
    if (tokens.empty() && allows(mask, end)) tokens.push_back(end);
    mask[static_cast<size_t>(end) / 32] &= ~(1u << (end % 32));
  }
  const auto last_end = static_cast<ptrdiff_t>(tokens.size());
  for (TokenId token = 0; token < vocab_size; ++token)
    if (allows(mask, token)) tokens.push_back(token);
  if (std::ssize(tokens) > last_end) tokens.erase(tokens.begin(), tokens.begin() + last_end);
  return tokens;
}

Status try_answer(GrammarMatcher& matcher, int64_t vocab_size, const std::vector<TokenId>& ends,
                  std::mt19937& random) {
  std::vector<uint32_t> mask(static_cast<size_t>(vocab_size + 31) / 32);
  for (int count = 0; count < kTrialTokens && !matcher.has_ended(); ++count) {
    double us = -cpu_us();
    matcher.fill(mask);
    us += cpu_us();
    const std::vector<TokenId> tokens = tokens_of(mask, vocab_size, ends);
    if (tokens.empty())
      return fail(ErrorCode::kInvalidArgument, "an answer of {} tokens cannot go on and not end",
                  count);
    us -= cpu_us();
    matcher.accept(tokens[random() % tokens.size()]);
    us += cpu_us();
    if (us > kMostMaskUs)
      return fail(ErrorCode::kInvalidArgument,
                  "it takes {:.0f} ms to say what may follow {} tokens, and {:.0f} are the most",
                  us / 1e3, count, kMostMaskUs / 1e3);
  }
  return {};
}

}  // namespace

Status try_grammar(GrammarCompiler& compiler, const std::string& source, int64_t vocab_size,
                   const std::vector<TokenId>& end_tokens) {
  std::mt19937 random(1);  // the same answers each time
  for (int answer = 0; answer < kTrialAnswers; ++answer) {
    auto matcher = compiler.compile(source);
    if (!matcher) return tl::unexpected(matcher.error());
    REFRAIN_RETURN_IF_ERROR(try_answer(**matcher, vocab_size, end_tokens, random));
  }
  return {};
}

}  // namespace refrain
