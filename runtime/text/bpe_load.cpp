// Reads the "model" object of tokenizer.json into a BpeModel.
#include <algorithm>

#include "runtime/text/bpe.h"
#include "runtime/text/json_reader.h"

namespace refrain::text {
namespace {

constexpr size_t kMaxMerges = size_t{1} << 22;

// "a b", or ["a", "b"] (the form that allows spaces in tokens).
Result<std::pair<std::string, std::string>> merge_sides(const JsonView& merges, size_t index) {
  const auto& value = merges.value()[index];
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string())
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  return merges.item(index).error("must be two tokens: \"a b\" or [\"a\", \"b\"]");
}

}  // namespace

Status BpeModel::load_options(const JsonView& model) {
  REFRAIN_ASSIGN_OR_RETURN(ignore_merges_, model.bool_or("ignore_merges", false));
  REFRAIN_ASSIGN_OR_RETURN(byte_fallback_, model.bool_or("byte_fallback", false));
  REFRAIN_ASSIGN_OR_RETURN(fuse_unk_, model.bool_or("fuse_unk", false));
  if (const auto dropout = model.find("dropout"))
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0)
      return dropout->error("must be null or 0: random segmentation is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    REFRAIN_ASSIGN_OR_RETURN(const std::string affix, model.string_or(key, ""));
    if (!affix.empty()) return model.find(key)->error("is not supported; it must be null or \"\"");
  }
  if (const auto unk = model.find("unk_token")) {
    REFRAIN_ASSIGN_OR_RETURN(const std::string token, unk->string());
    unk_ = vocabulary_->id_of(token);
  }
  return {};
}

Status BpeModel::load_merges(const JsonView& merges) {
  REFRAIN_RETURN_IF_ERROR(merges.expect_array());
  if (merges.value().size() > kMaxMerges)
    return merges.error(fmt::format("has more than {} entries", kMaxMerges));
  std::vector<Merge> table;
  table.reserve(merges.value().size());
  std::string joined;
  for (size_t i = 0; i < merges.value().size(); ++i) {
    REFRAIN_ASSIGN_OR_RETURN(const auto sides, merge_sides(merges, i));
    joined = sides.first + sides.second;
    const TokenId left = vocabulary_->id_of(sides.first);
    const TokenId right = vocabulary_->id_of(sides.second);
    const TokenId merged = vocabulary_->id_of(joined);
    if (left == kNoToken || right == kNoToken || merged == kNoToken)
      return merges.item(i).error(
          fmt::format("names '{}', which is not in model.vocab", left == kNoToken    ? sides.first
                                                                 : right == kNoToken ? sides.second
                                                                                     : joined));
    const auto key =
        (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
    table.push_back({key, static_cast<uint32_t>(i), merged});
  }
  build_merge_table(table);
  return {};
}

Result<BpeModel> BpeModel::load(const JsonView& model, const Vocabulary& vocabulary,
                                bool raw_bytes) {
  BpeModel bpe;
  bpe.vocabulary_ = &vocabulary;
  bpe.raw_bytes_ = raw_bytes;
  REFRAIN_RETURN_IF_ERROR(bpe.load_options(model));
  REFRAIN_ASSIGN_OR_RETURN(const JsonView merges, model.at("merges"));
  REFRAIN_RETURN_IF_ERROR(bpe.load_merges(merges));
  bpe.build_initial_symbols();
  if (const auto unk = model.find("unk_token"); unk && bpe.unk_ == kNoToken) {
    // Harmless only if no character can be unknown.
    const auto& bytes = bpe.byte_symbols_;
    if (!raw_bytes || std::find(bytes.begin(), bytes.end(), kNoToken) != bytes.end())
      return unk->error("is not in model.vocab");
  }
  return bpe;
}

}  // namespace refrain::text
