#pragma once
// The coordinator program: the engine, and the HTTP server where there is no front, until a signal.
// Blocks main's thread.

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct CoordinatorOptions {
  EngineConfig config;  // config.ipc_address: where workers connect
  std::string front;    // where a front listens, which has the clients; empty: this process has
  int64_t parent = 0;   // a supervisor that must not leave it behind; 0: none
  int report_fd = -1;   // where that supervisor reads (group_report.h); -1: nowhere
  int board_fd = -1;    // its SupervisorBoard; -1: none
};

// Returns the exit code: 0 after SIGINT or SIGTERM and a drain, else as R-8 says.
int run_coordinator(CoordinatorOptions options);

}  // namespace refrain
