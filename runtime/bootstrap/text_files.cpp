#include "runtime/bootstrap/text_files.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/child_process.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/check_config.h"
#include "runtime/text/answer/answer_parser.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

// Made-up weights of a shape need no words: without a tokenizer they answer in token ids alone.
Result<text::Tokenizer> load_tokenizer(const EngineConfig& config) {
  const auto file = std::filesystem::path(config.tokenizer) / "tokenizer.json";
  if (config.worker.load_dummy && !std::filesystem::exists(file)) {
    log::warn("{} is not there: made-up weights answer in token ids, without text", file.string());
    return text::Tokenizer::from_json(
        {R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})", {}, {}});
  }
  auto tokenizer = text::Tokenizer::load(config.tokenizer);
  if (tokenizer) return tokenizer;
  Error error = tokenizer.error();
  error.message = fmt::format("{}: {}", config.tokenizer, error.message);
  return forward_error(std::move(error));
}

Result<TextSide> read_text(const EngineConfig& config) {
  TextSide text;
  REFRAIN_ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(config));
  text.tokenizer = std::make_shared<const text::Tokenizer>(std::move(tokenizer));
  if (config.chat_template.empty()) {
    auto own = text::ChatTemplate::load(config.tokenizer);
    if (!own && own.error().code == ErrorCode::kNotFound) return text;  // a model without chat
    if (!own) return forward_error(own.error());
    text.chat_template = std::make_shared<const text::ChatTemplate>(std::move(*own));
    return text;
  }
  std::ifstream file(config.chat_template);
  if (!file) {
    return fail_field("--chat-template", "--chat-template {} cannot be read", config.chat_template);
  }
  std::stringstream source;
  source << file.rdbuf();
  REFRAIN_ASSIGN_OR_RETURN(auto parsed, text::ChatTemplate::from_source(source.str()));
  text.chat_template = std::make_shared<const text::ChatTemplate>(std::move(parsed));
  return text;
}

}  // namespace

Result<ModelConfig> read_model(EngineConfig& config) {
  if (config.model.empty()) {
    return fail_field("--model", "no model given; use --model DIRECTORY");
  }
  REFRAIN_ASSIGN_OR_RETURN(ModelConfig model, load_model_config(config.model));
  REFRAIN_RETURN_IF_ERROR(check_config(config, model));
  REFRAIN_RETURN_IF_ERROR(
      text::check_answer_format({config.tool_call_parser, config.reasoning_parser}));
  return model;
}

Result<TextSide> load_text(const EngineConfig& config, const ModelConfig& model) {
  if (const std::string defaults = config.generation_defaults.describe(); !defaults.empty()) {
    log::info("sampling defaults: {} (--generation-config vllm: the API's own)", defaults);
  }
  REFRAIN_ASSIGN_OR_RETURN(TextSide text, read_text(config));
  if (config.tokenizer == config.model) {  // the workers' grammars use the model's
    text.grammars = std::make_shared<GrammarHelper>(
        sibling_program("coordinator"),
        GrammarHelperOptions{config.model, model.vocab_size, model.eos_token_ids});
  }
  return text;
}

}  // namespace refrain
