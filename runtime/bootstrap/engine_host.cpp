#include "runtime/bootstrap/engine_host.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ipc/protocol/limits.h"
#include "ipc/transport/endpoint.h"
#include "runtime/base/check.h"
#include "runtime/base/child_process.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/check_config.h"
#include "runtime/text/answer/answer_parser.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace refrain {
namespace {

constexpr int kLastWordsMs = 200;  // a refusal or Shutdown sent just before the end still goes out

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

Result<TextSide> load_text(const EngineConfig& config) {
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

// The longest frame that a worker sends: Ready, or the result of a step in which every row asks for
// all log-probabilities.
int64_t largest_answer(const ipc::WorkerConfig& worker) {
  constexpr int64_t kRowBytes = 4 + 4 + 4 + 8 * kMaxLogprobs;
  constexpr int64_t kFixedBytes = 256;
  const size_t ready = ipc::kMaxPayloadBytes[ipc::Message(ipc::Ready{}).index()];
  const int64_t rows = kFixedBytes + worker.max_num_seqs * kRowBytes;
  return static_cast<int64_t>(ipc::kHeaderBytes) + std::max(static_cast<int64_t>(ready), rows);
}

}  // namespace

Result<std::unique_ptr<EngineHost>> EngineHost::create(EngineConfig config, int output_threads) {
  if (config.model.empty()) {
    return fail_field("--model", "no model given; use --model DIRECTORY");
  }
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(config.model));
  REFRAIN_RETURN_IF_ERROR(check_config(config, model));
  REFRAIN_RETURN_IF_ERROR(
      text::check_answer_format({config.tool_call_parser, config.reasoning_parser}));
  if (const std::string defaults = config.generation_defaults.describe(); !defaults.empty()) {
    log::info("sampling defaults: {} (--generation-config vllm: the API's own)", defaults);
  }
  auto host = std::unique_ptr<EngineHost>(new EngineHost(output_threads));
  if (config.ipc_address.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::create());
    config.ipc_address = host->directory_.emplace(std::move(directory)).address();
  }
  ipc::EndpointOptions endpoint_options;
  endpoint_options.address = config.ipc_address;
  endpoint_options.linger_ms = kLastWordsMs;
  endpoint_options.max_receive_bytes = largest_answer(config.worker);
  endpoint_options.curve = {config.curve_key, config.curve_allow, config.insecure_tcp};
  REFRAIN_ASSIGN_OR_RETURN(auto endpoint, ipc::make_zmq_server(host->io_, endpoint_options));
  REFRAIN_ASSIGN_OR_RETURN(host->text_, load_text(config));
  if (config.tokenizer == config.model) {  // the workers' grammars use the model's
    host->text_.grammars = std::make_shared<GrammarHelper>(
        sibling_program("coordinator"),
        GrammarHelperOptions{config.model, model.vocab_size, model.eos_token_ids});
  }
  REFRAIN_ASSIGN_OR_RETURN(
      host->engine_, Engine::create(std::move(config), model, host->text_.tokenizer, host->io_,
                                    host->outputs_.executors(), std::move(endpoint)));
  return host;
}

EngineHost::~EngineHost() = default;

void EngineHost::run() {
  outputs_.start([this] { io_.stop(); });
  engine_->start();
  try {
    io_.run();
  } catch (...) {
    outputs_.join();
    throw;
  }
  outputs_.stop();
}

}  // namespace refrain
