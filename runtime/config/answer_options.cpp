#include "runtime/config/answer_options.h"

#include <CLI/CLI.hpp>

namespace refrain {

void add_answer_options(CLI::App& app, EngineConfig& config, bool server) {
  const char* group = "Requests and answers";
  app.add_option("--generation-config", config.generation_config,
                 "Where requests' sampling defaults come from: auto (the model's "
                 "generation_config.json), vllm (none: the API's own) or a directory")
      ->capture_default_str()
      ->group(group);
  app.add_option("--override-generation-config", config.override_generation_config,
                 "JSON of sampling defaults that win over these, e.g. {\"temperature\": 0.5}")
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
  app.add_flag("--trust-request-chat-template", config.trust_request_chat_template,
               "Requests may bring a chat_template of their own")
      ->group(group);
}

}  // namespace refrain
