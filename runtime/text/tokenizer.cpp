#include "runtime/text/tokenizer.h"

#include <algorithm>

#include "runtime/text/tokenizer_parts.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {

namespace {

// Of a normalizer's output over its input (as in R-24); NFKC's worst character makes 11 of one.
constexpr size_t kGrowthPerByte = 16;

tl::unexpected<Error> too_many(const TextLimits& limits) {
  return fail_field(
      "prompt",
      "the prompt has more than {} tokens, but this model's maximum context length is "
      "{} tokens (max_model_len)",
      limits.max_tokens, limits.max_tokens);
}

}  // namespace

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

Status Tokenizer::Parts::encode_text(std::string_view text, bool at_start, const TextLimits& limits,
                                     EncodeScratch& scratch_buffers,
                                     std::vector<TokenId>& ids) const {
  if (!pre_tokenizer) return model->encode(text, scratch_buffers.bpe, ids);
  return pre_tokenizer->run({text, at_start}, scratch_buffers.pre_tokenizer,
                            [&](std::string_view piece) -> Status {
                              if (limits.stop != nullptr && *limits.stop)
                                return fail(ErrorCode::kUnavailable, "the server is shutting down");
                              if (ids.size() > limits.max_tokens) return too_many(limits);
                              return model->encode(piece, scratch_buffers.bpe, ids);
                            });
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                               const TextLimits& limits) const {
  if (text.size() > limits.max_bytes)
    return fail_field("prompt",
                      "the prompt has {} bytes, but this model's maximum context length is at most "
                      "{} bytes of text (max_model_len)",
                      text.size(), limits.max_bytes);
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(std::min(text.size() / 4, limits.max_tokens) + 8);
  const auto& post = parts_->post_processor;
  if (add_special_tokens) ids = post.before;
  auto scratch = parts_->scratch.take();
  RegexScratch& regex = scratch->pre_tokenizer.regex;
  regex.stop = limits.stop;
  regex.growth_left = kGrowthPerByte * text.size() + RegexScratch::kGrowth;
  const Status status = parts_->added.split(
      text, parts_->normalizer ? &*parts_->normalizer : nullptr, regex,
      [&](std::string_view part, bool at_start) {
        return parts_->encode_text(part, at_start, limits, *scratch, ids);
      },
      [&](TokenId id) { ids.push_back(id); });
  parts_->scratch.give_back(std::move(scratch));
  if (!status) return forward_error(status.error());
  if (add_special_tokens) ids.insert(ids.end(), post.behind.begin(), post.behind.end());
  if (ids.size() > limits.max_tokens) return too_many(limits);
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

size_t Tokenizer::longest_token_bytes() const { return parts_->longest_token_bytes; }

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

}  // namespace refrain::text
