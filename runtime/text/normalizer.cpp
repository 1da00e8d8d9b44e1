#include "runtime/text/normalizer.h"

#include <algorithm>

#include "runtime/text/json_reader.h"
#include "runtime/text/unicode/utf8.h"

namespace refrain::text {
namespace {

std::string strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Unit unit = read_utf8(text, 0);
    if (!is_white_space(unit.code_point)) break;
    text.remove_prefix(unit.length);
  }
  while (right && !text.empty()) {
    const size_t length = previous_char_length(text, text.size());
    if (!is_white_space(read_utf8(text, text.size() - length).code_point)) break;
    text.remove_suffix(length);
  }
  return std::string(text);
}

std::string strip_accents(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (!is_mark(unit.code_point)) out.append(text.substr(i, unit.length));
    i += unit.length;
  }
  return out;
}

constexpr size_t kMaxSteps = 64;

tl::unexpected<Error> too_long() {
  return fail(ErrorCode::kTooLarge, "the tokenizer's normalizer makes the text too long");
}

struct Apply {
  std::string_view text;
  size_t max_bytes;
  RegexScratch& scratch;

  Result<std::string> operator()(const UnicodeForm& step) const {
    return normalize(text, step.form);
  }
  Result<std::string> operator()(const LowercaseStep&) const { return to_lower(text); }
  Result<std::string> operator()(const StripAccentsStep&) const { return strip_accents(text); }
  Result<std::string> operator()(const StripStep& step) const {
    return strip(text, step.left, step.right);
  }
  Result<std::string> operator()(const PrependStep& step) const {
    return text.empty() ? std::string() : step.prefix + std::string(text);
  }
  Result<std::string> operator()(const ReplaceStep& step) const {
    return replace_all(step.pattern, text, step.content, max_bytes, scratch);
  }
};

}  // namespace

Result<Regex> load_pattern(const JsonView& owner) {
  REFRAIN_ASSIGN_OR_RETURN(const JsonView pattern, owner.at("pattern"));
  const auto literal = pattern.find("String");
  const auto source = literal ? literal : pattern.find("Regex");
  if (!source) return pattern.error("must be {\"String\": …} or {\"Regex\": …}");
  REFRAIN_ASSIGN_OR_RETURN(const std::string text, source->string());
  if (text.empty()) return source->error("must not be empty");
  auto regex = literal ? Regex::literal(text) : Regex::compile(text);
  if (!regex) return source->error(": " + regex.error().message);
  return regex;
}

Result<std::string> replace_all(const Regex& pattern, std::string_view text,
                                std::string_view content, size_t max_bytes, RegexScratch& scratch) {
  std::string out;
  Regex::Match match;
  size_t at = 0;
  size_t copied = 0;
  while (at <= text.size()) {
    REFRAIN_ASSIGN_OR_RETURN(const bool found, pattern.find(text, at, scratch, match));
    if (!found) break;
    out.append(text.substr(copied, match.begin - copied)).append(content);
    if (out.size() > max_bytes) return too_long();
    copied = at = match.end;
    if (match.begin == match.end) {  // an empty match: go on behind the next character
      if (at >= text.size()) break;
      at += read_utf8(text, at).length;
    }
  }
  out.append(text.substr(copied));
  return out;
}

Result<std::string> Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  std::string current(text);
  for (const NormalizerStep& step : steps_) {
    const size_t before = current.size();
    const size_t max_bytes = before + scratch.growth_left;
    REFRAIN_ASSIGN_OR_RETURN(current, std::visit(Apply{current, max_bytes, scratch}, step));
    if (current.size() > max_bytes) return too_long();
    scratch.growth_left -= std::max(current.size(), before) - before;
  }
  return current;
}

Status Normalizer::add(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  if (type == "Sequence") {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView list, json.at("normalizers"));
    REFRAIN_RETURN_IF_ERROR(list.expect_array());
    for (size_t i = 0; i < list.value().size(); ++i) REFRAIN_RETURN_IF_ERROR(add(list.item(i)));
  } else if (type == "NFC") {
    steps_.emplace_back(UnicodeForm{NormalForm::kNfc});
  } else if (type == "NFD") {
    steps_.emplace_back(UnicodeForm{NormalForm::kNfd});
  } else if (type == "NFKC") {
    steps_.emplace_back(UnicodeForm{NormalForm::kNfkc});
  } else if (type == "NFKD") {
    steps_.emplace_back(UnicodeForm{NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    steps_.emplace_back(LowercaseStep{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccentsStep{});
  } else if (type == "Strip") {
    REFRAIN_ASSIGN_OR_RETURN(const bool left, json.bool_or("strip_left", true));
    REFRAIN_ASSIGN_OR_RETURN(const bool right, json.bool_or("strip_right", true));
    steps_.emplace_back(StripStep{left, right});
  } else if (type == "Prepend") {
    REFRAIN_ASSIGN_OR_RETURN(std::string prefix, json.string("prepend"));
    steps_.emplace_back(PrependStep{std::move(prefix)});
  } else if (type == "Replace") {
    REFRAIN_ASSIGN_OR_RETURN(Regex pattern, load_pattern(json));
    REFRAIN_ASSIGN_OR_RETURN(std::string content, json.string("content"));
    steps_.emplace_back(ReplaceStep{std::move(pattern), std::move(content)});
  } else {
    return json.error(fmt::format(
        "has type '{}', which is not supported; supported are Sequence, NFC, NFD, NFKC, NFKD, "
        "Lowercase, StripAccents, Strip, Prepend, Replace",
        type));
  }
  if (steps_.size() > kMaxSteps)
    return json.error(fmt::format("has more than {} steps", kMaxSteps));
  return {};
}

Result<Normalizer> Normalizer::load(const JsonView& json) {
  Normalizer normalizer;
  REFRAIN_RETURN_IF_ERROR(normalizer.add(json));
  return normalizer;
}

}  // namespace refrain::text
