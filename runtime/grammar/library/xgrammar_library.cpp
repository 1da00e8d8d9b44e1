// The only place that knows xgrammar.

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/grammar/library/grammar_library.h"

namespace refrain {
namespace {

class Matcher : public GrammarMatcher {
 public:
  explicit Matcher(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}

  bool accept(int32_t token) override { return has_ended() || matcher_.AcceptToken(token); }
  void fill(std::span<uint32_t> mask) override {
    if (has_ended() || !write(mask)) std::fill(mask.begin(), mask.end(), ~0u);
  }
  void roll_back(int count) override {
    if (count > 0) matcher_.Rollback(count);
  }
  std::string forced_text() override {
    return has_ended() ? std::string() : matcher_.FindJumpForwardString();
  }
  bool has_ended() const override { return matcher_.IsTerminated(); }

 private:
  // False: every token is allowed, and the mask may not have been written.
  bool write(std::span<uint32_t> mask) {
    int64_t shape[] = {static_cast<int64_t>(mask.size())};
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    return matcher_.FillNextTokenBitmask(&tensor);
  }

  xgrammar::GrammarMatcher matcher_;
};

class Compiler : public LibraryCompiler {
 public:
  Compiler(const LibraryVocabulary& vocabulary, int threads, int64_t cache_bytes)
      : compiler_(xgrammar::TokenizerInfo(vocabulary.texts, xgrammar::VocabType::RAW,
                                          static_cast<int>(vocabulary.texts.size()),
                                          vocabulary.end_tokens),
                  threads, true, cache_bytes) {}

  std::unique_ptr<GrammarMatcher> compile(GrammarKind kind, const std::string& text) override {
    return std::make_unique<Matcher>(compiled(kind, text));
  }

 private:
  xgrammar::CompiledGrammar compiled(GrammarKind kind, const std::string& text) {
    // Runs of white space are bounded, so that a model cannot fill an answer with it.
    constexpr int kMostWhitespace = 8;
    switch (kind) {
      case GrammarKind::kJsonSchema:
        return compiler_.CompileJSONSchema(text, true, std::nullopt, std::nullopt, true,
                                           kMostWhitespace);
      case GrammarKind::kRegex:
        return compiler_.CompileRegex(text);
      case GrammarKind::kEbnf:
        return compiler_.CompileGrammar(text, "root");
    }
    throw std::invalid_argument("no kind of grammar");
  }

  xgrammar::GrammarCompiler compiler_;
};

}  // namespace
}  // namespace refrain

extern "C" __attribute__((visibility("default"))) refrain::LibraryCompiler*
refrain_make_grammar_compiler_2(const refrain::LibraryVocabulary& vocabulary, int threads,
                                int64_t cache_bytes) {
  return std::make_unique<refrain::Compiler>(vocabulary, threads, cache_bytes).release();
}
