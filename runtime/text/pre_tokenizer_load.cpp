// Reads the "pre_tokenizer" object of tokenizer.json.
#include "runtime/text/json_reader.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/pre_tokenizer.h"

namespace refrain::text {
namespace {

// GPT-2's split, which ByteLevel brings along unless use_regex is false.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t kMaxStages = 32;

Result<SplitBehavior> load_behavior(const JsonView& json, SplitBehavior fallback) {
  const auto field = json.find("behavior");
  if (!field) return fallback;
  REFRAIN_ASSIGN_OR_RETURN(const std::string name, field->string());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return field->error(
      "must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

Result<MetaspaceStage::Prepend> load_prepend(const JsonView& json) {
  using Prepend = MetaspaceStage::Prepend;
  const auto field = json.find("prepend_scheme");
  if (!field) {  // the older spelling
    REFRAIN_ASSIGN_OR_RETURN(const bool add, json.bool_or("add_prefix_space", true));
    return add ? Prepend::kAlways : Prepend::kNever;
  }
  REFRAIN_ASSIGN_OR_RETURN(const std::string name, field->string());
  if (name == "always") return Prepend::kAlways;
  if (name == "first") return Prepend::kFirst;
  if (name == "never") return Prepend::kNever;
  return field->error("must be always, first or never");
}

}  // namespace

Status PreTokenizer::add_split(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(Regex pattern, load_pattern(json));
  REFRAIN_ASSIGN_OR_RETURN(const auto behavior, load_behavior(json, SplitBehavior::kIsolated));
  REFRAIN_ASSIGN_OR_RETURN(const bool invert, json.bool_or("invert", false));
  stages_.emplace_back(SplitStage{std::move(pattern), behavior, invert});
  return {};
}

Status PreTokenizer::add_byte_level(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(const bool prefix, json.bool_or("add_prefix_space", true));
  REFRAIN_ASSIGN_OR_RETURN(const bool use_regex, json.bool_or("use_regex", true));
  // The prefix is added before the regex splits, the bytes are mapped after it.
  if (prefix) stages_.emplace_back(ByteLevelStage{true, false});
  if (use_regex) {
    REFRAIN_ASSIGN_OR_RETURN(Regex pattern, Regex::compile(kGpt2Pattern));
    stages_.emplace_back(SplitStage{std::move(pattern), SplitBehavior::kIsolated, false});
  }
  stages_.emplace_back(ByteLevelStage{false, true});
  return {};
}

Status PreTokenizer::add_metaspace(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(const auto prepend, load_prepend(json));
  REFRAIN_ASSIGN_OR_RETURN(std::string replacement, json.string_or("replacement", "▁"));
  if (replacement.empty()) return json.find("replacement")->error("must be one character");
  REFRAIN_ASSIGN_OR_RETURN(const bool split, json.bool_or("split", true));
  REFRAIN_ASSIGN_OR_RETURN(Regex boundary, Regex::literal(replacement));
  stages_.emplace_back(MetaspaceStage{prepend, std::move(replacement), std::move(boundary), split});
  return {};
}

Status PreTokenizer::add(const JsonView& json) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  if (stages_.size() > kMaxStages)
    return json.error(fmt::format("is one of more than {} stages", kMaxStages));
  if (type == "Sequence") {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView list, json.at("pretokenizers"));
    REFRAIN_RETURN_IF_ERROR(list.expect_array());
    for (size_t i = 0; i < list.value().size(); ++i) REFRAIN_RETURN_IF_ERROR(add(list.item(i)));
    return {};
  }
  if (type == "ByteLevel") return add_byte_level(json);
  if (type == "Split") return add_split(json);
  if (type == "Metaspace") return add_metaspace(json);
  if (type == "Digits") {
    REFRAIN_ASSIGN_OR_RETURN(const bool individual, json.bool_or("individual_digits", false));
    stages_.emplace_back(CharStage{
        CharClass::kNumeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    return {};
  }
  if (type == "Punctuation") {
    REFRAIN_ASSIGN_OR_RETURN(const auto behavior, load_behavior(json, SplitBehavior::kIsolated));
    stages_.emplace_back(CharStage{CharClass::kPunctuation, behavior});
    return {};
  }
  if (type == "WhitespaceSplit") {
    stages_.emplace_back(CharStage{CharClass::kWhiteSpace, SplitBehavior::kRemoved});
    return {};
  }
  if (type == "Whitespace") {
    REFRAIN_ASSIGN_OR_RETURN(Regex pattern, Regex::compile(R"(\w+|[^\w\s]+)"));
    stages_.emplace_back(SplitStage{std::move(pattern), SplitBehavior::kRemoved, true});
    return {};
  }
  return json.error(
      fmt::format("has type '{}', which is not supported; supported are Sequence, ByteLevel, "
                  "Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace",
                  type));
}

Result<PreTokenizer> PreTokenizer::load(const JsonView& json) {
  PreTokenizer result;
  REFRAIN_RETURN_IF_ERROR(result.add(json));
  if (!result.stages_.empty()) {
    if (auto* last = std::get_if<ByteLevelStage>(&result.stages_.back()); last && last->map_bytes) {
      result.stages_.pop_back();
      result.raw_bytes_ = true;
    }
  }
  return result;
}

}  // namespace refrain::text
