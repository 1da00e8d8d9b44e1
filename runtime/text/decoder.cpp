#include "runtime/text/decoder.h"

#include <cctype>
#include <optional>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/json_reader.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

std::string replace_text(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit = text.find(from); hit != std::string_view::npos; hit = text.find(from, at)) {
    out.append(text.substr(at, hit - at)).append(to);
    at = hit + from.size();
  }
  out.append(text.substr(at));
  return out;
}

std::string_view strip_text(std::string_view text, const StripText& step) {
  for (int64_t i = 0; i < step.left && text.starts_with(step.character); ++i)
    text.remove_prefix(step.character.size());
  for (int64_t i = 0; i < step.right && text.ends_with(step.character); ++i)
    text.remove_suffix(step.character.size());
  return text;
}

// "<0xE2>" -> 0xE2.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    const int digit = std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 0x20) - 'a' + 10;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

}  // namespace

std::string Decoder::apply_steps(std::string_view token, bool first) const {
  std::string text(token);
  for (const TokenStep& step : steps_) {
    if (const auto* replace = std::get_if<ReplaceText>(&step)) {
      text = replace_text(text, replace->from, replace->to);
    } else if (const auto* strip = std::get_if<StripText>(&step)) {
      text = std::string(strip_text(text, *strip));
    } else if (const auto* metaspace = std::get_if<MetaspaceText>(&step)) {
      const bool drop = first && metaspace->drop_in_first;
      text = replace_text(text, metaspace->replacement, drop ? "" : " ");
    }
  }
  return text;
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string text = apply_steps(token, false);
  if (bytes_ == Bytes::kByteLevel) {
    if (auto bytes = chars_to_bytes(text)) return std::move(*bytes);
  } else if (bytes_ == Bytes::kByteFallback) {
    if (const auto byte = fallback_byte(text)) return std::string(1, *byte);
  }
  return text;
}

Status Decoder::add_strip(const JsonView& json, Phase phase) {
  REFRAIN_ASSIGN_OR_RETURN(std::string character, json.string("content"));
  if (character.empty()) return json.error("has an empty content");
  const auto count = [&](std::string_view key) -> Result<int64_t> {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView field, json.at(key));
    return field.integer(0, 1024);
  };
  REFRAIN_ASSIGN_OR_RETURN(const int64_t left, count("start"));
  REFRAIN_ASSIGN_OR_RETURN(const int64_t right, count("stop"));
  if (phase == Phase::kTokens) {
    steps_.emplace_back(StripText{std::move(character), left, right});
    return {};
  }
  if (phase == Phase::kBytes || right != 0 || !strip_char_.empty())
    return json.error("strips in a place that is not supported");
  strip_char_ = std::move(character);
  strip_left_ = left;
  return {};
}

Status Decoder::add_metaspace(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(std::string replacement, json.string_or("replacement", "▁"));
  REFRAIN_ASSIGN_OR_RETURN(const bool prefix, json.bool_or("add_prefix_space", true));
  REFRAIN_ASSIGN_OR_RETURN(const std::string scheme,
                           json.string_or("prepend_scheme", prefix ? "always" : "never"));
  if (replacement.empty()) return json.error("has an empty replacement");
  steps_.emplace_back(MetaspaceText{std::move(replacement), scheme != "never"});
  return {};
}

Status Decoder::add(const JsonView& json, Phase& phase) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  if (type == "Sequence") {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView list, json.at("decoders"));
    REFRAIN_RETURN_IF_ERROR(list.expect_array());
    for (size_t i = 0; i < list.value().size(); ++i)
      REFRAIN_RETURN_IF_ERROR(add(list.item(i), phase));
    return {};
  }
  if (type == "Fuse") {
    phase = Phase::kFused;
    return {};
  }
  if (type == "Strip") return add_strip(json, phase);
  if (type != "ByteLevel" && type != "ByteFallback" && type != "Replace" && type != "Metaspace")
    return json.error(
        fmt::format("has type '{}', which is not supported; supported are Sequence, ByteLevel, "
                    "ByteFallback, Fuse, Replace, Strip, Metaspace",
                    type));
  if (phase != Phase::kTokens)
    return json.error(fmt::format("puts {} behind a step that it must come before", type));
  if (type == "ByteLevel") {
    bytes_ = Bytes::kByteLevel;
    phase = Phase::kFused;
  } else if (type == "ByteFallback") {
    bytes_ = Bytes::kByteFallback;
    phase = Phase::kBytes;
  } else if (type == "Metaspace") {
    return add_metaspace(json);
  } else {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView pattern, json.at("pattern"));
    REFRAIN_ASSIGN_OR_RETURN(std::string from, pattern.string("String"));
    REFRAIN_ASSIGN_OR_RETURN(std::string to, json.string("content"));
    if (from.empty()) return pattern.error("must not be empty");
    steps_.emplace_back(ReplaceText{std::move(from), std::move(to)});
  }
  return {};
}

Result<Decoder> Decoder::load(const JsonView& json) {
  Decoder decoder;
  decoder.join_with_spaces_ = false;
  Phase phase = Phase::kTokens;
  REFRAIN_RETURN_IF_ERROR(decoder.add(json, phase));
  return decoder;
}

DecodeStream::DecodeStream(const Decoder& decoder, bool continues_text)
    : decoder_(&decoder),
      first_(!continues_text),
      strip_left_(continues_text ? 0 : decoder.strip_left_) {}

void DecodeStream::emit(std::string_view text, std::string& out) {
  while (strip_left_ > 0 && !text.empty()) {
    if (!text.starts_with(decoder_->strip_char_)) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(decoder_->strip_char_.size());
    --strip_left_;
  }
  out.append(text);
}

// A run of byte tokens is text if it is valid as a whole; else each byte is a U+FFFD.
void DecodeStream::end_byte_run(std::string& out) {
  if (pending_.empty()) return;
  if (is_valid_utf8(pending_)) {
    emit(pending_, out);
  } else {
    for (size_t i = 0; i < pending_.size(); ++i) emit(kReplacementBytes, out);
  }
  pending_.clear();
}

void DecodeStream::push(std::string_view token, std::string& out) {
  const std::string text = decoder_->apply_steps(token, first_);
  if (decoder_->join_with_spaces_ && !first_) out.push_back(' ');
  first_ = false;
  switch (decoder_->bytes_) {
    case Decoder::Bytes::kNone:
      return emit(text, out);
    case Decoder::Bytes::kByteFallback:
      if (const auto byte = fallback_byte(text)) {
        pending_.push_back(*byte);
      } else {
        end_byte_run(out);
        emit(text, out);
      }
      return;
    case Decoder::Bytes::kByteLevel: {
      pending_ += chars_to_bytes(text).value_or(text);
      std::string ready;
      drain_utf8(pending_, ready);
      return emit(ready, out);
    }
  }
}

void DecodeStream::finish(std::string& out) {
  if (decoder_->bytes_ == Decoder::Bytes::kByteFallback) {
    end_byte_run(out);
  } else if (!pending_.empty()) {
    emit(kReplacementBytes, out);
    pending_.clear();
  }
}

}  // namespace refrain::text
