#include "runtime/grammar/grammar.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/processors.h"
#include "runtime/base/shared_library.h"
#include "runtime/grammar/automata.h"
#include "runtime/grammar/library/grammar_library.h"

namespace refrain {
namespace {

constexpr int64_t kCacheBytes = int64_t{64} << 20;

// A bounded string costs a second of a processor: some of them share the work, and most are left to
// those that serve.
int compile_threads() { return std::clamp(usable_processors() / 4, 1, 8); }

// Special tokens have no text: the library never allows them.
std::vector<std::string> token_texts(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<std::string> texts(static_cast<size_t>(vocab_size));
  const auto known = std::min<int64_t>(vocab_size, static_cast<int64_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < known; ++id) {
    if (!tokenizer.is_special(id)) texts[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return texts;
}

bool take_kind(std::string_view& source, std::string_view kind) {
  if (!source.starts_with(kind)) return false;
  source.remove_prefix(kind.size());
  return true;
}

// Rules take some expressions that automata do not, and say better what is wrong with others.
std::unique_ptr<GrammarMatcher> compile_regex(LibraryCompiler& compiler, const std::string& regex) {
  if (const std::string automaton = automaton_grammar(regex); !automaton.empty()) {
    try {
      return compiler.compile(GrammarKind::kEbnf, automaton);
    } catch (const std::runtime_error&) {
    }
  }
  return compiler.compile(GrammarKind::kRegex, regex);
}

std::unique_ptr<GrammarMatcher> compile_source(LibraryCompiler& compiler, std::string_view source) {
  if (take_kind(source, kJsonSchemaGrammar)) {
    return compiler.compile(GrammarKind::kJsonSchema,
                            with_patterns_for_lengths(std::string(source)));
  }
  if (take_kind(source, kRegexGrammar)) return compile_regex(compiler, std::string(source));
  if (take_kind(source, kEbnfGrammar))
    return compiler.compile(GrammarKind::kEbnf, std::string(source));
  throw std::invalid_argument("the source names no kind of grammar");
}

}  // namespace

std::string said_by_library(const std::string& text, size_t place) {
  const size_t colon = place == std::string::npos ? place : text.find(": ", place);
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

Result<MakeGrammarCompiler> grammar_library() {
  static std::mutex mutex;
  static MakeGrammarCompiler known = nullptr;
  const std::lock_guard lock(mutex);
  if (known != nullptr) return known;
  const auto library = SharedLibrary::load(
      "REFRAIN_XGRAMMAR", "librefrain_xgrammar.so", RTLD_NOW | RTLD_LOCAL,
      "structured outputs need a library that cannot be loaded; `tools/quickstart` and `ninja "
      "refrain_xgrammar` build it");
  if (!library) return fail(ErrorCode::kUnavailable, "{}", library.error().message);
  library->find(kMakeGrammarCompiler, known);
  if (known != nullptr) return known;
  return fail(ErrorCode::kUnavailable,
              "{} has no {}: it is of another build; `ninja refrain_xgrammar` makes this one's",
              library->path(), kMakeGrammarCompiler);
}

Result<GrammarCompiler> GrammarCompiler::create(const text::Tokenizer& tokenizer,
                                                int64_t vocab_size,
                                                const std::vector<TokenId>& end_tokens) {
  const auto make = grammar_library();
  if (!make) return forward_error(make.error());
  return GrammarCompiler(std::unique_ptr<LibraryCompiler>(
      (*make)({token_texts(tokenizer, vocab_size), end_tokens}, compile_threads(), kCacheBytes)));
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<LibraryCompiler> compiler)
    : compiler_(std::move(compiler)) {}
GrammarCompiler::GrammarCompiler(GrammarCompiler&&) noexcept = default;
GrammarCompiler& GrammarCompiler::operator=(GrammarCompiler&&) noexcept = default;
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarMatcher>> GrammarCompiler::compile(const std::string& source) {
  try {
    return compile_source(*compiler_, source);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kInvalidArgument, "it is too large to compile in the memory allowed");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return fail(ErrorCode::kInvalidArgument, "{}", said_by_library(text, text.rfind(".cc:")));
  }
}

}  // namespace refrain
