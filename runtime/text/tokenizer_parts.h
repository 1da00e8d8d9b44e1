#pragma once
// What a Tokenizer is made of. Immutable after load but for the pool of scratch buffers, which has
// its own lock. Lives as long as any copy of its Tokenizer.

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/decoder.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/post_processor.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace refrain::text {

struct EncodeScratch {
  PreTokenizerScratch pre_tokenizer;
  BpeScratch bpe;
};

// Lends a scratch to each encode call; as many exist as calls ever ran at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct Tokenizer::Parts {
  Vocabulary vocabulary;  // the model's own
  AddedTokens added;
  std::optional<Normalizer> normalizer;
  std::optional<PreTokenizer> pre_tokenizer;
  std::optional<BpeModel> model;
  PostProcessor post_processor;
  Decoder decoder;
  SpecialTokens special;
  size_t vocab_size = 0;
  size_t longest_token_bytes = 0;
  mutable ScratchPool scratch;

  Status load_tokenizer(const JsonView& json);
  Status load_vocabulary(const JsonView& model);
  Status load_added_tokens(const JsonView& list);
  Status load_config(const JsonView& config);
  Status load_config_tokens(const JsonView& decoder);
  Status load_special_tokens(const JsonView& json);
  Status apply_add_bos_eos(const JsonView& config);
  Status finish();

  std::optional<std::string_view> token(TokenId id) const;
  Status encode_text(std::string_view text, bool at_start, const TextLimits& limits,
                     EncodeScratch& scratch_buffers, std::vector<TokenId>& ids) const;
};

}  // namespace refrain::text
