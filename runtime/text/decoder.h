#pragma once
// The "decoder" of tokenizer.json: from token strings back to text, one token at a time. Decoder is
// immutable after load and shared; a DecodeStream belongs to one text and one thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::text {

class JsonView;

// Steps on one token's string.
struct ReplaceText {
  std::string from, to;
};
struct StripText {
  std::string character;
  int64_t left, right;
};
struct MetaspaceText {
  std::string replacement;
  bool drop_in_first;  // the first token loses its replacement characters
};
using TokenStep = std::variant<ReplaceText, StripText, MetaspaceText>;

class Decoder {
 public:
  // What the token strings say about bytes.
  enum class Bytes : uint8_t { kNone, kByteLevel, kByteFallback };

  // Without a "decoder" object: tokens joined by spaces.
  Decoder() = default;
  static Result<Decoder> load(const JsonView& json);

  // The bytes a token adds to a text when it is not the first.
  std::string token_bytes(std::string_view token) const;

 private:
  friend class DecodeStream;
  enum class Phase : uint8_t { kTokens, kBytes, kFused };
  Status add(const JsonView& json, Phase& phase);
  Status add_strip(const JsonView& json, Phase phase);
  Status add_metaspace(const JsonView& json);
  std::string apply_steps(std::string_view token, bool first) const;

  std::vector<TokenStep> steps_;
  Bytes bytes_ = Bytes::kNone;
  bool join_with_spaces_ = true;
  std::string strip_char_;  // of the whole text's left end, after all tokens are joined
  int64_t strip_left_ = 0;
};

class DecodeStream {
 public:
  // continues_text: tokens come behind other text, so nothing is dropped from their beginning.
  explicit DecodeStream(const Decoder& decoder, bool continues_text = false);

  // Appends to `out` what is certain by now: whole characters only.
  void push(std::string_view token, std::string& out);
  // Appends what an unfinished character leaves: U+FFFD.
  void finish(std::string& out);

 private:
  void end_byte_run(std::string& out);
  void emit(std::string_view text, std::string& out);

  const Decoder* decoder_;
  bool first_;
  int64_t strip_left_;
  std::string pending_;  // bytes that are not a character yet
};

}  // namespace refrain::text
