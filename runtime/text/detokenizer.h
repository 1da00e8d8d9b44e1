#pragma once
// Text out of tokens as they come. Owned by one request and one thread; keeps its tokenizer alive.

#include <memory>
#include <string>

#include "runtime/base/ids.h"
#include "runtime/text/tokenizer.h"

namespace refrain::text {

class DecodeStream;

struct DetokenizeOptions {
  bool skip_special_tokens = true;
  // The tokens continue a prompt's text, so a leading space that a whole text would lose is kept.
  bool continues_text = false;
};

class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, DetokenizeOptions options = {});
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  // The text that is certain with this token: whole characters, perhaps none. All pieces and
  // flush() joined equal Tokenizer::decode of all ids. Amortised O(1) a token.
  std::string push(TokenId id);
  // What an unfinished character leaves (U+FFFD). Call once, at the end.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer::Parts> parts_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace refrain::text
