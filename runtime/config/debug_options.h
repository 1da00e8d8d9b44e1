#pragma once
// What helps to find a fault and costs time: options of every command that starts workers and of
// the worker itself, passed on by command line. Plain data.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace refrain {

struct DebugOptions {
  std::string dump_values;     // directory; empty: nothing is written
  int32_t dump_steps = 2;      // the first so many steps
  bool check_weights = false;  // refuse weights that are not finite numbers, by name
  bool nvtx = false;           // ranges named by op and key
  bool time_steps = false;     // log how long the device idles between decode steps
};

void add_debug_options(CLI::App& app, DebugOptions& options);
// The command line that add_debug_options reads back.
std::vector<std::string> debug_arguments(const DebugOptions& options);

}  // namespace refrain
