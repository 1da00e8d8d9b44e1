#pragma once
// What runtime/grammar needs of xgrammar. It is a library of its own, loaded with the first
// grammar, so that programs can be built, and answer, before it is there: it takes as long to
// compile as a seventh of all the rest. Whoever makes one of these includes nothing of ours but
// this file. Calls throw what derives from std::exception.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace refrain {

// Follows one answer; as GrammarMatcher (grammar.h) says.
class LibraryMatcher {
 public:
  LibraryMatcher() = default;
  LibraryMatcher(const LibraryMatcher&) = delete;
  LibraryMatcher& operator=(const LibraryMatcher&) = delete;
  virtual ~LibraryMatcher() = default;

  virtual bool accept(int32_t token) = 0;
  virtual bool has_ended() const = 0;
  // `words` of the mask. False: every token is allowed, and the mask may not have been written.
  virtual bool fill(uint32_t* mask, int64_t words) = 0;
  virtual void roll_back(int count) = 0;
  virtual std::string forced_text() = 0;
};

enum class GrammarKind { kJsonSchema, kRegex, kEbnf };

class LibraryCompiler {
 public:
  LibraryCompiler() = default;
  LibraryCompiler(const LibraryCompiler&) = delete;
  LibraryCompiler& operator=(const LibraryCompiler&) = delete;
  virtual ~LibraryCompiler() = default;

  // std::runtime_error says what is wrong with the text.
  virtual std::unique_ptr<LibraryMatcher> compile(GrammarKind kind, const std::string& text) = 0;
};

struct LibraryVocabulary {
  std::vector<std::string> texts;  // of all tokens; empty ones are never allowed
  std::vector<int32_t> end_tokens;
};

// The library's only function, which makes one for the caller to own: `threads` compile together,
// compiled grammars are kept within `cache_bytes`. The name changes with this file, so that a
// library of another build is not taken.
inline constexpr const char* kMakeGrammarCompiler = "refrain_make_grammar_compiler_1";
using MakeGrammarCompiler = LibraryCompiler* (*)(const LibraryVocabulary&, int threads,
                                                 int64_t cache_bytes);

}  // namespace refrain
