#pragma once
// The program front: HTTP, texts and the clients' requests, for a coordinator in another process
// (runtime/front). Blocks main's thread.

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct FrontOptions {
  EngineConfig config;
  std::string listen;  // where the coordinator connects
  int64_t parent = 0;  // a supervisor that must not leave it behind; 0: none
  int board_fd = -1;   // its SupervisorBoard; -1: none
};

// Returns the exit code: 0 after SIGINT or SIGTERM and a drain, else as R-8 says.
int run_front(FrontOptions options);

}  // namespace refrain
