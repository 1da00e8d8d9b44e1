#include "runtime/grammar/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/grammar/automata.h"

namespace refrain {
namespace {

constexpr int64_t kCacheBytes = int64_t{64} << 20;

// A bounded string costs a second of a processor: some of them share the work, and most are left to
// those that serve.
int compile_threads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

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
xgrammar::CompiledGrammar compile_regex(xgrammar::GrammarCompiler& compiler,
                                        const std::string& regex) {
  if (const std::string automaton = automaton_grammar(regex); !automaton.empty()) {
    try {
      return compiler.CompileGrammar(automaton, "root");
    } catch (const std::runtime_error&) {
    }
  }
  return compiler.CompileRegex(regex);
}

xgrammar::CompiledGrammar compile_source(xgrammar::GrammarCompiler& compiler,
                                         std::string_view source) {
  // Runs of white space are bounded, so that a model cannot fill an answer with it.
  constexpr int kMostWhitespace = 8;
  if (take_kind(source, kJsonSchemaGrammar)) {
    return compiler.CompileJSONSchema(with_patterns_for_lengths(std::string(source)), true,
                                      std::nullopt, std::nullopt, true, kMostWhitespace);
  }
  if (take_kind(source, kRegexGrammar)) return compile_regex(compiler, std::string(source));
  if (take_kind(source, kEbnfGrammar)) return compiler.CompileGrammar(std::string(source), "root");
  throw std::invalid_argument("the source names no kind of grammar");
}

}  // namespace

std::string said_by_library(const std::string& text, size_t place) {
  const size_t colon = place == std::string::npos ? place : text.find(": ", place);
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

struct GrammarMatcher::State {
  xgrammar::GrammarMatcher matcher;
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::accept(TokenId token) {
  return state_->matcher.IsTerminated() || state_->matcher.AcceptToken(token);
}

void GrammarMatcher::fill(std::span<uint32_t> mask) {
  if (state_->matcher.IsTerminated()) {
    std::fill(mask.begin(), mask.end(), ~0u);
    return;
  }
  int64_t shape[] = {static_cast<int64_t>(mask.size())};
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = shape;
  // False: every token is allowed, and the mask may not have been written.
  if (!state_->matcher.FillNextTokenBitmask(&tensor)) std::fill(mask.begin(), mask.end(), ~0u);
}

void GrammarMatcher::roll_back(int count) {
  if (count > 0) state_->matcher.Rollback(count);
}

std::string GrammarMatcher::forced_text() {
  return has_ended() ? std::string() : state_->matcher.FindJumpForwardString();
}

bool GrammarMatcher::has_ended() const { return state_->matcher.IsTerminated(); }

struct GrammarCompiler::Library {
  xgrammar::TokenizerInfo vocabulary;
  xgrammar::GrammarCompiler compiler;
};

GrammarCompiler::GrammarCompiler(const text::Tokenizer& tokenizer, int64_t vocab_size,
                                 const std::vector<TokenId>& end_tokens) {
  const xgrammar::TokenizerInfo vocabulary(token_texts(tokenizer, vocab_size),
                                           xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
                                           end_tokens);
  library_ = std::make_unique<Library>(Library{
      vocabulary, xgrammar::GrammarCompiler(vocabulary, compile_threads(), true, kCacheBytes)});
}

GrammarCompiler::~GrammarCompiler() = default;

Result<GrammarMatcher> GrammarCompiler::compile(const std::string& source) {
  try {
    return GrammarMatcher(std::make_unique<GrammarMatcher::State>(GrammarMatcher::State{
        xgrammar::GrammarMatcher(compile_source(library_->compiler, source))}));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kInvalidArgument, "it is too large to compile in the memory allowed");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return fail(ErrorCode::kInvalidArgument, "{}", said_by_library(text, text.rfind(".cc:")));
  }
}

}  // namespace refrain
