#include "apps/refrain/commands.h"

#include <CLI/CLI.hpp>

#include "apps/refrain/serve.h"
#include "runtime/base/child_process.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/config/option_values.h"
#include "runtime/config/options.h"
#include "runtime/offline/generate.h"

namespace refrain {

int serve_command(const std::vector<std::string>& arguments) {
  EngineConfig config;
  CLI::App app("Serves a model: one coordinator and its workers on this machine.", "refrain serve");
  add_engine_options(app, config, {});
  const auto parsed = parse_command_line(app, arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  init_logging("refrain", config.log_level);
  return run_serve(config, arguments);
}

int generate_command(const std::vector<std::string>& arguments) {
  GenerateOptions options;
  CLI::App app("Completes prompts through the engine and its workers, without a server.",
               "refrain generate");
  options.config.log_level = "warning";
  add_engine_options(app, options.config, {.server = false, .positional_model = false});
  app.add_option(
         "--prompts", options.prompts,
         "JSON lines with prompt, messages or prompt_ids, and sampling fields, or an OpenAI batch "
         "file; -: stdin")
      ->group("Generate");
  app.add_option("--prompt", options.texts, "A prompt; its completion is printed as plain text")
      ->group("Generate");
  app.add_option("--max-tokens", options.max_tokens,
                 "Tokens of an answer, where a line of --prompts does not say it")
      ->check(CLI::Range(1, INT32_MAX))
      ->capture_default_str()
      ->group("Generate");
  app.add_option("--temperature", options.temperature,
                 "Of prompts that do not say it (default: 1, as the API's)")
      ->check(number_in(0.0, 100.0))
      ->group("Generate");
  app.add_option("--output", options.output, "File for the answers; -: stdout")->group("Generate");
  const auto parsed = parse_command_line(app, arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  init_logging("refrain", options.config.log_level);
  return run_generate(options);
}

// A program of its own: it has what nobody needs who serves, and takes a while to build.
int bench_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {sibling_program("bench")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Error error = become(argv);
  error.message += "; `ninja bench` builds it, an installation has it beside refrain";
  error.field = "bench";
  return report(error);
}

}  // namespace refrain
