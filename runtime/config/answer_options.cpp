#include "runtime/config/answer_options.h"

#include <CLI/CLI.hpp>

#include "runtime/base/json.h"

namespace refrain {
namespace {

// There is one backend: what else vLLM has is refused by its name.
std::string wrong_backend(const std::string& backend) {
  if (backend == "auto" || backend == "xgrammar") return {};
  return fmt::format("the backend '{}' is not there; structured output is made by xgrammar",
                     backend);
}

std::string wrong_structured_outputs(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return "must be a JSON object, e.g. {\"backend\": \"xgrammar\"}";
  for (const auto& [name, value] : json.items()) {
    if (name != "backend" || !value.is_string())
      return fmt::format("takes \"backend\" only, a string; '{}' is not supported", name);
    if (std::string wrong = wrong_backend(value.get<std::string>()); !wrong.empty()) return wrong;
  }
  return {};
}

// Nothing is to be kept of what has one value.
void accept(const std::string& /*value*/) {}

}  // namespace

void add_answer_options(CLI::App& app, EngineConfig& config, bool server) {
  const char* group = "Requests and answers";
  app.add_option("--generation-config", config.generation_config,
                 "Where requests' sampling defaults come from: auto (the model's "
                 "generation_config.json), vllm (none: the API's own) or a directory")
      ->group(group);
  app.add_option("--override-generation-config", config.override_generation_config,
                 "JSON of sampling defaults that win over these, e.g. {\"temperature\": 0.5}")
      ->group(group);
  constexpr int32_t kMostLogprobs = 20;  // as many as sampling keeps
  app.add_option("--max-logprobs", config.max_logprobs,
                 "Log-probabilities of other tokens that a request may ask for, of each token "
                 "(at most 20)")
      ->check(CLI::Range(0, kMostLogprobs))
      ->group(group);
  app.add_option("--logprobs-mode", config.worker.logprobs_mode,
                 "What logprobs are: raw_logprobs, the model's own log-probabilities; raw_logits, "
                 "its logits; processed_logprobs or processed_logits, those that a token is drawn "
                 "from, after penalties, masks, temperature, top-k, top-p and min-p")
      ->check(
          CLI::IsMember({"raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"}))
      ->group(group);
  if (!server) return;
  app.add_option("--tool-call-parser", config.tool_call_parser,
                 "Format of the model's tool calls: hermes, llama3_json, mistral, qwen3_xml, "
                 "deepseek_v3 or openai")
      ->group(group);
  app.add_flag("--enable-auto-tool-choice", config.enable_auto_tool_choice,
               "Requests with tools may leave it to the model whether it calls one; needs "
               "--tool-call-parser")
      ->group(group);
  app.add_option("--reasoning-parser", config.reasoning_parser,
                 "Format of the model's reasoning, told apart from its answer: qwen3, deepseek_r1 "
                 "or openai_gptoss")
      ->group(group);
  app.add_option_function<std::string>(
         "--structured-outputs-config", &accept,
         "JSON; {\"backend\": \"xgrammar\"} or auto, which is the same")
      ->check(CLI::Validator(wrong_structured_outputs, ""))
      ->group(group);
  app.add_option_function<std::string>("--guided-decoding-backend", &accept,
                                       "xgrammar or auto, which is the same")
      ->check(CLI::Validator(wrong_backend, ""))
      ->group(group);
  app.add_flag("--trust-request-chat-template", config.trust_request_chat_template,
               "Requests may bring a chat_template of their own")
      ->group(group);
}

}  // namespace refrain
