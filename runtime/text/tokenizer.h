#pragma once
// A Hugging Face tokenizer (tokenizer.json with a BPE model). Immutable once loaded; copies share
// it. Every function may be called from any thread at any time.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/text/text_limits.h"

namespace refrain::text {

// The role tokens of tokenizer_config.json (or special_tokens_map.json).
struct SpecialTokens {
  std::optional<std::string> bos, eos, pad, unk;
};

struct TokenizerFiles {
  std::string tokenizer;           // tokenizer.json
  std::string tokenizer_config;    // tokenizer_config.json; may be empty
  std::string special_tokens_map;  // special_tokens_map.json; may be empty
};

class Tokenizer {
 public:
  // Reads tokenizer.json and, where they are there, tokenizer_config.json and
  // special_tokens_map.json of a model's directory. Errors name file and field.
  static Result<Tokenizer> load(const std::filesystem::path& model_dir);
  static Result<Tokenizer> from_json(const TokenizerFiles& files);

  // Bytes that are not UTF-8 count as U+FFFD. add_special_tokens: as the model's post-processor
  // says (often a beginning-of-sequence token, or nothing). O(n log n) in time, O(n) in memory,
  // within `limits`: more bytes or tokens are kInvalidArgument, by bytes before any work.
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens,
                                      const TextLimits& limits = {}) const;

  // Ids outside the vocabulary add nothing.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  size_t vocab_size() const;           // highest id + 1
  size_t longest_token_bytes() const;  // as tokenizer.json writes it: no token stands for more
  std::optional<TokenId> id_of(std::string_view token) const;
  bool is_special(TokenId id) const;

  // The token as tokenizer.json writes it ("Ġthe"); nothing for an unknown id.
  std::optional<std::string> token(TokenId id) const;
  // The bytes it adds to a text (" the"), which need not be whole characters.
  std::string token_bytes(TokenId id) const;
  // The same as text, U+FFFD for what is no whole character: what log-probabilities show.
  std::string token_to_string(TokenId id) const;

  const SpecialTokens& special_tokens() const;

 private:
  friend class IncrementalDetokenizer;
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace refrain::text
