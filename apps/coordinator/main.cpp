// coordinator: the engine of the workers that connect to --listen, and its HTTP server where no
// front has the clients.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string_view>

#include "runtime/base/build_info.h"
#include "runtime/base/last_error.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/config/options.h"
#include "runtime/coordinator/coordinator.h"
#include "runtime/grammar/grammar_helper.h"

int main(int argc, char** argv) {
  refrain::end_by_what_is_lacking();
  using namespace refrain;
  if (argc > 1 && std::string_view(argv[1]) == kGrammarHelperWord)
    return run_grammar_helper({argv + 2, argv + argc});
  CoordinatorOptions options;
  CLI::App app("Schedules requests onto tensor-parallel workers and serves the OpenAI API.",
               "coordinator");
  app.set_version_flag("--version", build_id());
  add_engine_options(app, options.config, {});
  app.add_option("--listen", options.config.ipc_address,
                 "Address for workers: ipc:///path/name or tcp://host:port")
      ->group("Processes and device");
  app.add_option("--curve-key", options.config.curve_key,
                 "Key pair of this coordinator, a file of `refrain keygen` (tcp:// needs one)")
      ->group("Processes and device");
  app.add_option("--curve-allow", options.config.curve_allow, "Public keys of the workers let in")
      ->group("Processes and device");
  app.add_flag("--insecure-tcp", options.config.insecure_tcp,
               "tcp:// without keys: anyone who reaches the port can be a worker")
      ->group("Processes and device");
  app.add_option("--front", options.front,
                 "Address of a `front`, which has the clients: ipc:///path/name (default: this "
                 "process serves HTTP itself)")
      ->group("Processes and device");
  app.add_option("--parent", options.parent, "Process that starts this one: end when it does")
      ->group("");
  app.add_option("--board-fd", options.board_fd, "Counters of a supervisor")->group("");
  app.add_option("--report-fd", options.report_fd, "Pipe of a supervisor that listens")->group("");
  const auto parsed = parse_command_line(app, {argv + 1, argv + argc});
  init_logging("coordinator", options.config.log_level);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  try {
    return run_coordinator(std::move(options));
  } catch (const std::exception& error) {
    return end_by(error);
  }
}
