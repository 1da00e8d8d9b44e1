#pragma once
// The coordinator program: engine and HTTP server until a signal. Blocks main's thread.

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct CoordinatorOptions {
  EngineConfig config;  // config.ipc_address: where workers connect
  int64_t parent = 0;   // a supervisor that must not leave it behind; 0: none
  int report_fd = -1;   // where that supervisor reads (group_report.h); -1: nowhere
  int board_fd = -1;    // its SupervisorBoard; -1: none
};

// Returns the exit code: 0 after SIGINT or SIGTERM and a drain, else as R-8 says.
int run_coordinator(CoordinatorOptions options);

}  // namespace refrain
