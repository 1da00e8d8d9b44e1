#include "apps/bench/load.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/base/report.h"
#include "runtime/config/options.h"
#include "runtime/load/load_run.h"

namespace refrain {

bool is_load(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments.front() == "serve" &&
         std::ranges::any_of(arguments, [](const std::string& word) {
           return word == "--base-url" || word.starts_with("--base-url=");
         });
}

int load_command(const std::vector<std::string>& arguments) {
  LoadOptions options;
  CLI::App app(
      "Sends a load to a server that speaks OpenAI's API, and says what came of it. Options and "
      "figures have vLLM's names.",
      "refrain bench serve");
  add_load_options(app, options);
  std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  if (words.size() == 2 && words.back() == "--help-page") words.erase(words.begin());
  const auto parsed = parse_command_line(app, std::move(words));
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  const Status done = run_load(std::move(options));
  return done ? kExitOk : report(done.error());
}

}  // namespace refrain
