#pragma once
// The coordinator program: engine and HTTP server until a signal. Blocks main's thread.

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct CoordinatorOptions {
  EngineConfig config;           // config.ipc_address: where workers connect
  bool die_with_parent = false;  // started by a supervisor that must not leave it behind
};

// Returns the exit code: 0 after SIGINT or SIGTERM and a drain, else as R-8 says.
int run_coordinator(CoordinatorOptions options);

// Ends this process when its parent ends (Linux).
void die_with_parent(int signal_number);

// Logs the error and returns its exit code.
int report(const Error& error);

}  // namespace refrain
