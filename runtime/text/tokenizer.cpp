#include "runtime/text/tokenizer.h"

#include "runtime/text/tokenizer_parts.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {

std::unique_ptr<EncodeScratch> ScratchPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  // A very long text's buffers are not kept.
  constexpr size_t kKeep = size_t{1} << 16;
  if (scratch->bpe.symbols.capacity() > kKeep) scratch->bpe.symbols = {};
  if (scratch->bpe.heap.capacity() > kKeep) scratch->bpe.heap = {};
  scratch->pre_tokenizer.levels.clear();
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

std::optional<std::string_view> Tokenizer::Parts::token(TokenId id) const {
  if (const AddedToken* found = added.by_id(id)) return found->written;
  return vocabulary.token(id);
}

Status Tokenizer::Parts::encode_text(std::string_view text, bool at_start,
                                     EncodeScratch& scratch_buffers,
                                     std::vector<TokenId>& ids) const {
  if (!pre_tokenizer) return model->encode(text, scratch_buffers.bpe, ids);
  return pre_tokenizer->run(
      {text, at_start}, scratch_buffers.pre_tokenizer,
      [&](std::string_view piece) { return model->encode(piece, scratch_buffers.bpe, ids); });
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 8);
  const auto& post = parts_->post_processor;
  if (add_special_tokens) ids = post.before;
  auto scratch = parts_->scratch.take();
  const Status status = parts_->added.split(
      text, parts_->normalizer ? &*parts_->normalizer : nullptr, scratch->pre_tokenizer.regex,
      [&](std::string_view part, bool at_start) {
        return parts_->encode_text(part, at_start, *scratch, ids);
      },
      [&](TokenId id) { ids.push_back(id); });
  parts_->scratch.give_back(std::move(scratch));
  if (!status) return forward_error(status.error());
  if (add_special_tokens) ids.insert(ids.end(), post.behind.begin(), post.behind.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  DecodeStream stream(parts_->decoder);
  std::string text;
  for (const TokenId id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    if (const auto token = parts_->token(id)) stream.push(*token, text);
  }
  stream.finish(text);
  return text;
}

size_t Tokenizer::vocab_size() const { return parts_->vocab_size; }

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  if (const AddedToken* found = parts_->added.by_content(token)) return found->id;
  const TokenId id = parts_->vocabulary.id_of(token);
  if (id == kNoToken) return std::nullopt;
  return id;
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* found = parts_->added.by_id(id);
  return found != nullptr && found->special;
}

std::optional<std::string> Tokenizer::token(TokenId id) const {
  if (const auto token = parts_->token(id)) return std::string(*token);
  return std::nullopt;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const auto token = parts_->token(id);
  return token ? parts_->decoder.token_bytes(*token) : std::string();
}

std::string Tokenizer::token_to_string(TokenId id) const {
  return replace_invalid_utf8(token_bytes(id));
}

const SpecialTokens& Tokenizer::special_tokens() const { return parts_->special; }

std::optional<TokenId> Tokenizer::bos_id() const {
  return parts_->special.bos ? id_of(*parts_->special.bos) : std::nullopt;
}

std::optional<TokenId> Tokenizer::eos_id() const {
  return parts_->special.eos ? id_of(*parts_->special.eos) : std::nullopt;
}

}  // namespace refrain::text
