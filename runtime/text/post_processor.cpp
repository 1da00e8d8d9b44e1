#include "runtime/text/post_processor.h"

#include "runtime/text/json_reader.h"
#include "runtime/text/vocabulary.h"

namespace refrain::text {
namespace {

Result<std::vector<TokenId>> token_ids(const JsonView& list) {
  REFRAIN_RETURN_IF_ERROR(list.expect_array());
  std::vector<TokenId> ids;
  for (size_t i = 0; i < list.value().size(); ++i) {
    REFRAIN_ASSIGN_OR_RETURN(const int64_t id, list.item(i).integer(0, kMaxTokenId));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

// "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, …]
Status load_template(const JsonView& json, PostProcessor& out) {
  REFRAIN_ASSIGN_OR_RETURN(const JsonView single, json.at("single"));
  REFRAIN_RETURN_IF_ERROR(single.expect_array());
  const auto specials = json.find("special_tokens");
  bool behind = false;
  for (size_t i = 0; i < single.value().size(); ++i) {
    const JsonView item = single.item(i);
    if (item.find("Sequence")) {
      if (behind) return item.error("repeats the text, which is not supported");
      behind = true;
      continue;
    }
    const auto special = item.find("SpecialToken");
    if (!special) return item.error("must be a SpecialToken or a Sequence");
    REFRAIN_ASSIGN_OR_RETURN(const std::string name, special->string("id"));
    const auto known = specials ? specials->find(name) : std::nullopt;
    if (!known) return special->error("names a token that special_tokens does not have");
    REFRAIN_ASSIGN_OR_RETURN(const JsonView list, known->at("ids"));
    REFRAIN_ASSIGN_OR_RETURN(const auto ids, token_ids(list));
    auto& target = behind ? out.behind : out.before;
    target.insert(target.end(), ids.begin(), ids.end());
  }
  if (!behind) return single.error("never names the Sequence");
  return {};
}

// "cls": ["<s>", 0], "sep": ["</s>", 2] of the BERT and RoBERTa processors.
Result<TokenId> named_token(const JsonView& json, std::string_view key) {
  REFRAIN_ASSIGN_OR_RETURN(const JsonView pair, json.at(key));
  if (!pair.value().is_array() || pair.value().size() != 2)
    return pair.error("must be [token, id]");
  REFRAIN_ASSIGN_OR_RETURN(const int64_t id, pair.item(1).integer(0, kMaxTokenId));
  return static_cast<TokenId>(id);
}

Status add(const JsonView& json, PostProcessor& out) {
  REFRAIN_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  if (type == "ByteLevel") return {};  // only moves offsets
  if (type == "Sequence") {
    REFRAIN_ASSIGN_OR_RETURN(const JsonView list, json.at("processors"));
    REFRAIN_RETURN_IF_ERROR(list.expect_array());
    for (size_t i = 0; i < list.value().size(); ++i) {
      PostProcessor inner;
      REFRAIN_RETURN_IF_ERROR(add(list.item(i), inner));
      out.before.insert(out.before.begin(), inner.before.begin(), inner.before.end());
      out.behind.insert(out.behind.end(), inner.behind.begin(), inner.behind.end());
    }
    return {};
  }
  if (type == "TemplateProcessing") return load_template(json, out);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    REFRAIN_ASSIGN_OR_RETURN(const TokenId cls, named_token(json, "cls"));
    REFRAIN_ASSIGN_OR_RETURN(const TokenId sep, named_token(json, "sep"));
    out.before.push_back(cls);
    out.behind.push_back(sep);
    return {};
  }
  return json.error(
      fmt::format("has type '{}', which is not supported; supported are Sequence, ByteLevel, "
                  "TemplateProcessing, BertProcessing, RobertaProcessing",
                  type));
}

}  // namespace

Result<PostProcessor> PostProcessor::load(const JsonView& json) {
  PostProcessor result;
  REFRAIN_RETURN_IF_ERROR(add(json, result));
  return result;
}

}  // namespace refrain::text
