#pragma once
// What following an answer costs shows only when the answer has begun, and so does a grammar that
// no answer ends: made-up answers are followed for a while before a client's grammar is let in.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/grammar/grammar.h"

namespace refrain {

inline constexpr int kTrialAnswers = 4;
inline constexpr int kTrialTokens = 48;  // of each answer
inline constexpr double kMostMaskUs =
    1e5;  // processor time to take a token and say what may follow

// kInvalidArgument: a token took longer, or an answer came to where nothing may follow. For the
// process that compiled the source: a single token may take all of its time and memory.
Status try_grammar(GrammarCompiler& compiler, const std::string& source, int64_t vocab_size,
                   const std::vector<TokenId>& end_tokens);

}  // namespace refrain
