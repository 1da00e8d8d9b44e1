// Builds a Tokenizer from its files.
#include <algorithm>

#include "runtime/text/json_reader.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_parts.h"

namespace refrain::text {
namespace {

namespace fs = std::filesystem;

Result<AddedToken> read_added_token(const JsonView& json) {
  AddedToken token;
  REFRAIN_RETURN_IF_ERROR(json.expect_object());
  REFRAIN_ASSIGN_OR_RETURN(token.content, json.string("content"));
  REFRAIN_ASSIGN_OR_RETURN(token.single_word, json.bool_or("single_word", false));
  REFRAIN_ASSIGN_OR_RETURN(token.lstrip, json.bool_or("lstrip", false));
  REFRAIN_ASSIGN_OR_RETURN(token.rstrip, json.bool_or("rstrip", false));
  REFRAIN_ASSIGN_OR_RETURN(token.special, json.bool_or("special", false));
  REFRAIN_ASSIGN_OR_RETURN(token.normalized, json.bool_or("normalized", !token.special));
  return token;
}

// A role token is written "<s>" or {"content": "<s>", …}.
Status read_role(const JsonView& json, std::string_view key, std::optional<std::string>& role) {
  const auto field = json.find(key);
  if (!field || role) return {};
  REFRAIN_ASSIGN_OR_RETURN(role,
                           field->value().is_object() ? field->string("content") : field->string());
  return {};
}

Result<std::string> read_if_there(const fs::path& path, size_t max_bytes) {
  std::error_code code;
  if (!fs::exists(path, code)) return std::string();
  return read_text_file(path, max_bytes);
}

}  // namespace

Status Tokenizer::Parts::load_vocabulary(const JsonView& model_json) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string type, model_json.string_or("type", "BPE"));
  if (type != "BPE")
    return model_json.error(fmt::format("has type '{}'; only BPE is supported", type));
  REFRAIN_ASSIGN_OR_RETURN(const JsonView vocab, model_json.at("vocab"));
  REFRAIN_RETURN_IF_ERROR(vocab.expect_object());
  vocabulary.reserve(vocab.value().size());
  for (const auto& [token_text, id] : vocab.value().items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxTokenId)
      return vocab.error(fmt::format("gives '{}' an id that is not an integer from 0 to {}",
                                     token_text, kMaxTokenId));
    if (!vocabulary.add(id.get<TokenId>(), token_text))
      return vocab.error(fmt::format("gives id {} to two tokens, one of them '{}'",
                                     id.get<TokenId>(), token_text));
  }
  return {};
}

Status Tokenizer::Parts::load_added_tokens(const JsonView& list) {
  REFRAIN_RETURN_IF_ERROR(list.expect_array());
  for (size_t i = 0; i < list.value().size(); ++i) {
    REFRAIN_ASSIGN_OR_RETURN(AddedToken token, read_added_token(list.item(i)));
    REFRAIN_ASSIGN_OR_RETURN(const JsonView id, list.item(i).at("id"));
    REFRAIN_ASSIGN_OR_RETURN(const int64_t number, id.integer(0, kMaxTokenId));
    token.id = static_cast<TokenId>(number);
    // A token of the model keeps the model's id, whatever is written here.
    if (const TokenId known = vocabulary.id_of(token.content); known != kNoToken) token.id = known;
    if (const auto status = added.add(std::move(token)); !status)
      return list.item(i).error(": " + status.error().message);
  }
  return {};
}

Status Tokenizer::Parts::load_tokenizer(const JsonView& json) {
  REFRAIN_RETURN_IF_ERROR(json.expect_object());
  REFRAIN_ASSIGN_OR_RETURN(const JsonView model_json, json.at("model"));
  REFRAIN_RETURN_IF_ERROR(load_vocabulary(model_json));
  if (const auto part = json.find("normalizer")) {
    REFRAIN_ASSIGN_OR_RETURN(normalizer, Normalizer::load(*part));
  }
  if (const auto part = json.find("pre_tokenizer")) {
    REFRAIN_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::load(*part));
  }
  const bool raw_bytes = pre_tokenizer && pre_tokenizer->raw_bytes();
  REFRAIN_ASSIGN_OR_RETURN(model, BpeModel::load(model_json, vocabulary, raw_bytes));
  if (const auto part = json.find("post_processor")) {
    REFRAIN_ASSIGN_OR_RETURN(post_processor, PostProcessor::load(*part));
  }
  if (const auto part = json.find("decoder")) {
    REFRAIN_ASSIGN_OR_RETURN(decoder, Decoder::load(*part));
  }
  if (const auto list = json.find("added_tokens")) return load_added_tokens(*list);
  return {};
}

Status Tokenizer::Parts::load_special_tokens(const JsonView& json) {
  REFRAIN_RETURN_IF_ERROR(json.expect_object());
  REFRAIN_RETURN_IF_ERROR(read_role(json, "bos_token", special.bos));
  REFRAIN_RETURN_IF_ERROR(read_role(json, "eos_token", special.eos));
  REFRAIN_RETURN_IF_ERROR(read_role(json, "pad_token", special.pad));
  return read_role(json, "unk_token", special.unk);
}

// "added_tokens_decoder": {"128000": {"content": …}}; tokenizer.json's own entries win.
Status Tokenizer::Parts::load_config_tokens(const JsonView& tokens) {
  REFRAIN_RETURN_IF_ERROR(tokens.expect_object());
  for (const auto& [key, value] : tokens.value().items()) {
    const JsonView field(value, tokens.path() + "." + key);
    const bool digits =
        !key.empty() && key.size() <= 7 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::stol(key) > kMaxTokenId)
      return field.error(fmt::format("must be named by an id from 0 to {}", kMaxTokenId));
    const auto id = static_cast<TokenId>(std::stol(key));
    REFRAIN_ASSIGN_OR_RETURN(AddedToken token, read_added_token(field));
    if (added.by_id(id) != nullptr || added.by_content(token.content) != nullptr) continue;
    token.id = id;
    if (const auto status = added.add(std::move(token)); !status)
      return field.error(": " + status.error().message);
  }
  return {};
}

// add_bos_token and add_eos_token, where the configuration has either, replace the post-processor.
Status Tokenizer::Parts::apply_add_bos_eos(const JsonView& config) {
  if (!config.value().contains("add_bos_token") && !config.value().contains("add_eos_token"))
    return {};
  post_processor = {};
  const auto add = [&](std::string_view key, const std::optional<std::string>& role,
                       std::vector<TokenId>& target) -> Status {
    REFRAIN_ASSIGN_OR_RETURN(const bool wanted, config.bool_or(key, false));
    if (!wanted || !role) return {};
    const AddedToken* found = added.by_content(*role);
    const TokenId id = found != nullptr ? found->id : vocabulary.id_of(*role);
    if (id == kNoToken)
      return config.find(key)->error(fmt::format("asks for '{}', which has no id", *role));
    target.push_back(id);
    return {};
  };
  REFRAIN_RETURN_IF_ERROR(add("add_bos_token", special.bos, post_processor.before));
  return add("add_eos_token", special.eos, post_processor.behind);
}

Status Tokenizer::Parts::load_config(const JsonView& config) {
  REFRAIN_RETURN_IF_ERROR(load_special_tokens(config));
  if (const auto tokens = config.find("added_tokens_decoder"))
    REFRAIN_RETURN_IF_ERROR(load_config_tokens(*tokens));
  return {};
}

Status Tokenizer::Parts::finish() {
  vocab_size = vocabulary.size();
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id)
    if (const auto written = vocabulary.token(id))
      longest_token_bytes = std::max(longest_token_bytes, written->size());
  for (const AddedToken& token : added.tokens()) {
    vocab_size = std::max(vocab_size, static_cast<size_t>(token.id) + 1);
    longest_token_bytes = std::max(longest_token_bytes, token.content.size());
  }
  return added.build(normalizer ? &*normalizer : nullptr);
}

Result<Tokenizer> Tokenizer::from_json(const TokenizerFiles& files) {
  auto parts = std::make_shared<Parts>();
  {
    REFRAIN_ASSIGN_OR_RETURN(const auto json, parse_json(files.tokenizer, "tokenizer.json"));
    REFRAIN_RETURN_IF_ERROR(parts->load_tokenizer(JsonView(json, "tokenizer.json:")));
  }
  const std::string config_text = files.tokenizer_config.empty() ? "{}" : files.tokenizer_config;
  REFRAIN_ASSIGN_OR_RETURN(const auto config, parse_json(config_text, "tokenizer_config.json"));
  const JsonView config_view(config, "tokenizer_config.json:");
  REFRAIN_RETURN_IF_ERROR(parts->load_config(config_view));
  if (!files.special_tokens_map.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(const auto map,
                             parse_json(files.special_tokens_map, "special_tokens_map.json"));
    REFRAIN_RETURN_IF_ERROR(parts->load_special_tokens(JsonView(map, "special_tokens_map.json:")));
  }
  REFRAIN_RETURN_IF_ERROR(parts->apply_add_bos_eos(config_view));
  REFRAIN_RETURN_IF_ERROR(parts->finish());
  return Tokenizer(std::move(parts));
}

Result<Tokenizer> Tokenizer::load(const fs::path& model_dir) {
  constexpr size_t kMaxConfigBytes = size_t{16} << 20;
  TokenizerFiles files;
  REFRAIN_ASSIGN_OR_RETURN(files.tokenizer,
                           read_text_file(model_dir / "tokenizer.json", kMaxFileBytes));
  REFRAIN_ASSIGN_OR_RETURN(files.tokenizer_config,
                           read_if_there(model_dir / "tokenizer_config.json", kMaxConfigBytes));
  REFRAIN_ASSIGN_OR_RETURN(files.special_tokens_map,
                           read_if_there(model_dir / "special_tokens_map.json", kMaxConfigBytes));
  return from_json(files);
}

}  // namespace refrain::text
