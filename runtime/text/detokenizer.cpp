#include "runtime/text/detokenizer.h"

#include "runtime/text/decoder.h"
#include "runtime/text/tokenizer_parts.h"

namespace refrain::text {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               DetokenizeOptions options)
    : parts_(tokenizer.parts_),
      skip_special_tokens_(options.skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(parts_->decoder, options.continues_text)) {}

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::push(TokenId id) {
  std::string text;
  if (skip_special_tokens_) {
    const AddedToken* added = parts_->added.by_id(id);
    if (added != nullptr && added->special) return text;
  }
  if (const auto token = parts_->token(id)) stream_->push(*token, text);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text;
  stream_->finish(text);
  return text;
}

}  // namespace refrain::text
