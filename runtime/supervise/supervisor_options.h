#pragma once
// What a supervisor is told.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace refrain {

struct SupervisorOptions {
  std::vector<std::vector<std::vector<std::string>>> workers;  // by group: argv of each rank
  std::vector<std::string> coordinator;  // argv; empty: the engine is in this process
  std::vector<std::string> front;  // argv; empty: clients are the coordinator's, or there are none
  int max_restarts = 3;            // within RestartPolicy::kWindow
  std::string incident_dir;        // of incident records; empty: only the log
  Duration drain_timeout{};        // of the coordinator
  std::function<void(int group)> on_given_up = {};  // it is not started again, and others are
  uint64_t seed = 0;                                // of the jitter in the pauses between restarts
};

}  // namespace refrain
