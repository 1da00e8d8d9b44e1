#pragma once
// Grammars that answers keep to, through xgrammar: compiling one for a vocabulary, and following an
// answer token by token. A matcher belongs to one thread.

#include <cstdint>
#include <memory>
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
  // GrammarHelper first. Any threads, at one time too.
  Result<std::unique_ptr<GrammarMatcher>> compile(const std::string& source);

 private:
  explicit GrammarCompiler(std::unique_ptr<LibraryCompiler> compiler);

  std::unique_ptr<LibraryCompiler> compiler_;
};

}  // namespace refrain
