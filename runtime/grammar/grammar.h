#pragma once
// Grammars that answers keep to, through xgrammar: compiling one for a vocabulary, and following an
// answer token by token. A GrammarCompiler belongs to one thread, and so does each matcher, which
// may be another one.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/grammar/library/grammar_library.h"
#include "runtime/text/tokenizer.h"

namespace refrain {

inline constexpr size_t kMaxGrammarBytes = size_t{64} << 10;  // of a grammar's source

// A grammar's source travels as one string, its kind in front: "json_schema:{…}", "regex:…" or
// "ebnf:…" (GBNF, root rule "root").
inline constexpr const char* kJsonSchemaGrammar = "json_schema:";
inline constexpr const char* kRegexGrammar = "regex:";
inline constexpr const char* kEbnfGrammar = "ebnf:";

// The library's messages begin with time, file and line: what stands behind those, of which `place`
// is where the file's name ends (".cc:"); the whole where there is none.
std::string said_by_library(const std::string& text, size_t place);

// Loads the library that knows grammars, if this process has not yet. kUnavailable: it is not there
// (tools/quickstart builds it after the first answer), or of another build. Any thread.
Result<MakeGrammarCompiler> grammar_library();

// Follows one answer.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::unique_ptr<LibraryMatcher> matcher);
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // False: the grammar does not allow the token, which was not taken. After an end token every
  // token is allowed.
  bool accept(TokenId token);
  // Which tokens may come next: bit t % 32 of word t / 32. End tokens are among them once the
  // answer is complete.
  void fill(std::span<uint32_t> mask);  // [ceil(vocab_size / 32)]
  // Takes the last `count` tokens back; none of them may be one after an end token.
  void roll_back(int count);
  // The text that the answer goes on with, whatever it will be; empty: there is a choice.
  std::string forced_text();
  // An end token was taken.
  bool has_ended() const;

 private:
  std::unique_ptr<LibraryMatcher> matcher_;
};

class GrammarCompiler {
 public:
  // `vocab_size`: the model's, which may be greater than the tokenizer's. Special tokens are never
  // allowed but for `end_tokens`. Fails as grammar_library() does.
  static Result<GrammarCompiler> create(const text::Tokenizer& tokenizer, int64_t vocab_size,
                                        const std::vector<TokenId>& end_tokens);
  GrammarCompiler(GrammarCompiler&&) noexcept;
  GrammarCompiler& operator=(GrammarCompiler&&) noexcept;
  ~GrammarCompiler();

  // A matcher at the beginning of an answer. The last compiled grammars are kept, within 64 MiB.
  // Time and memory have no limit here: whoever compiles what a client sent does it in a
  // GrammarHelper first.
  Result<GrammarMatcher> compile(const std::string& source);

 private:
  explicit GrammarCompiler(std::unique_ptr<LibraryCompiler> compiler);

  std::unique_ptr<LibraryCompiler> compiler_;
};

}  // namespace refrain
