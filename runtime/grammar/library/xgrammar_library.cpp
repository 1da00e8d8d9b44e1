// The only place that knows xgrammar.

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/grammar/library/grammar_library.h"

namespace refrain {
namespace {

class Matcher : public LibraryMatcher {
 public:
  explicit Matcher(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}

  bool accept(int32_t token) override { return matcher_.AcceptToken(token); }
  bool has_ended() const override { return matcher_.IsTerminated(); }
  bool fill(uint32_t* mask, int64_t words) override {
    int64_t shape[] = {words};
    DLTensor tensor{};
    tensor.data = mask;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    return matcher_.FillNextTokenBitmask(&tensor);
  }
  void roll_back(int count) override { matcher_.Rollback(count); }
  std::string forced_text() override { return matcher_.FindJumpForwardString(); }

 private:
  xgrammar::GrammarMatcher matcher_;
};

class Compiler : public LibraryCompiler {
 public:
  Compiler(const LibraryVocabulary& vocabulary, int threads, int64_t cache_bytes)
      : compiler_(xgrammar::TokenizerInfo(vocabulary.texts, xgrammar::VocabType::RAW,
                                          static_cast<int>(vocabulary.texts.size()),
                                          vocabulary.end_tokens),
                  threads, true, cache_bytes) {}

  std::unique_ptr<LibraryMatcher> compile(GrammarKind kind, const std::string& text) override {
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
refrain_make_grammar_compiler_1(const refrain::LibraryVocabulary& vocabulary, int threads,
                                int64_t cache_bytes) {
  return std::make_unique<refrain::Compiler>(vocabulary, threads, cache_bytes).release();
}
