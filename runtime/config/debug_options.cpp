#include "runtime/config/debug_options.h"

#include <CLI/CLI.hpp>

namespace refrain {

void add_debug_options(CLI::App& app, DebugOptions& options) {
  const char* group = "Debugging";
  app.add_option("--dump-values", options.dump_values,
                 "Directory for every op's outputs of the first steps, run without graphs "
                 "(read by tools/compare_values)")
      ->group(group);
  app.add_option("--dump-steps", options.dump_steps, "Steps that --dump-values writes")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--check-weights", options.check_weights,
               "Refuse a checkpoint with NaN or infinite weights, naming the first")
      ->group(group);
  app.add_flag("--nvtx", options.nvtx, "NVTX ranges named by op and key, for a profiler (CUDA)")
      ->group(group);
  app.add_flag("--time-steps", options.time_steps,
               "Log how long the device idles between decode steps")
      ->group(group);
}

std::vector<std::string> debug_arguments(const DebugOptions& options) {
  std::vector<std::string> arguments;
  if (!options.dump_values.empty()) {
    arguments = {"--dump-values", options.dump_values, "--dump-steps",
                 std::to_string(options.dump_steps)};
  }
  if (options.check_weights) arguments.emplace_back("--check-weights");
  if (options.nvtx) arguments.emplace_back("--nvtx");
  if (options.time_steps) arguments.emplace_back("--time-steps");
  return arguments;
}

}  // namespace refrain
