// front: HTTP server, texts and clients' requests, for the coordinator that connects to --listen.

#include <CLI/CLI.hpp>
#include <exception>

#include "runtime/base/build_info.h"
#include "runtime/base/last_error.h"
#include "runtime/base/log.h"
#include "runtime/base/report.h"
#include "runtime/config/options.h"
#include "runtime/coordinator/front.h"

int main(int argc, char** argv) {
  refrain::end_by_what_is_lacking();
  using namespace refrain;
  FrontOptions options;
  CLI::App app(
      "Serves the OpenAI API for a coordinator in another process, whose end its clients outlive.",
      "front");
  app.set_version_flag("--version", build_id());
  add_engine_options(app, options.config, {});
  app.add_option("--listen", options.listen, "Address for the coordinator: ipc:///path/name")
      ->required()
      ->group("Processes and device");
  app.add_option("--parent", options.parent, "Process that starts this one: end when it does")
      ->group("");
  app.add_option("--board-fd", options.board_fd, "Counters of a supervisor")->group("");
  const auto parsed = parse_command_line(app, {argv + 1, argv + argc});
  init_logging("front", options.config.log_level);
  if (!parsed) return report(parsed.error());
  if (parsed->exit_now) return kExitOk;
  try {
    return run_front(std::move(options));
  } catch (const std::exception& error) {
    return end_by(error);
  }
}
