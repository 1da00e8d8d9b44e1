#pragma once
// Logging for every process: spdlog to standard error, one line an event, the process's role and
// rank in front. Set up once in main; safe from every thread.

#include <spdlog/spdlog.h>

#include <string>

namespace refrain {

// Prepares the default logger. `role` is "coordinator", "worker 0", …; `level` one of
// trace, debug, info, warning, error, off. An unknown level is treated as info and said so.
void init_logging(const std::string& role, const std::string& level = "info");

namespace log = spdlog;

}  // namespace refrain
