#pragma once
// What runtime/grammar needs of xgrammar. It is a library of its own, loaded with the first
// grammar, so that programs can be built, and answer, before it is there: it takes as long to
// compile as a seventh of all the rest. Whoever makes one of these includes nothing of ours but
// this file. Calls throw what derives from std::exception.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace refrain {

// Follows one answer.
class GrammarMatcher {
 public:
  GrammarMatcher() = default;
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;
  virtual ~GrammarMatcher() = default;

  // False: the grammar does not allow the token, which was not taken. After an end token every
  // token is allowed.
  virtual bool accept(int32_t token) = 0;
  // Which tokens may come next: bit t % 32 of word t / 32. End tokens are among them once the
  // answer is complete.
  virtual void fill(std::span<uint32_t> mask) = 0;  // [ceil(vocab_size / 32)]
  // Takes the last `count` tokens back; none of them may be one after an end token.
  virtual void roll_back(int count) = 0;
  // The text that the answer goes on with, whatever it will be; empty: there is a choice.
  virtual std::string forced_text() = 0;
  // An end token was taken.
  virtual bool has_ended() const = 0;
};

enum class GrammarKind { kJsonSchema, kRegex, kEbnf };

class LibraryCompiler {
 public:
  LibraryCompiler() = default;
  LibraryCompiler(const LibraryCompiler&) = delete;
  LibraryCompiler& operator=(const LibraryCompiler&) = delete;
  virtual ~LibraryCompiler() = default;

  // std::runtime_error says what is wrong with the text. Any threads, at one time too.
  virtual std::unique_ptr<GrammarMatcher> compile(GrammarKind kind, const std::string& text) = 0;
};

struct LibraryVocabulary {
  std::vector<std::string> texts;  // of all tokens; empty ones are never allowed
  std::vector<int32_t> end_tokens;
};

// The library's only function, which makes one for the caller to own: `threads` compile together,
// compiled grammars are kept within `cache_bytes`. The name changes with this file, so that a
// library of another build is not taken.
inline constexpr const char* kMakeGrammarCompiler = "refrain_make_grammar_compiler_2";
using MakeGrammarCompiler = LibraryCompiler* (*)(const LibraryVocabulary&, int threads,
                                                 int64_t cache_bytes);

}  // namespace refrain
