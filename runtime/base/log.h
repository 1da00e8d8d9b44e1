#pragma once
// Logging for every process: spdlog to standard error, one line an event, the process's role and
// rank in front. Set up once in main; safe from every thread. spdlog itself is seen by log.cpp
// alone: its headers cost a file that logs two seconds of compiling.

#include <fmt/core.h>

#include <string>

namespace refrain {

// Prepares the default logger. `role` is "coordinator", "worker 0", …; `level` one of
// trace, debug, info, warning, error, off. An unknown level is treated as info and said so.
void init_logging(const std::string& role, const std::string& level = "info");

namespace log {

enum class Level { kDebug, kInfo, kWarning, kError, kCritical };

// Formats and writes a line, where the logger's level lets it pass.
void write(Level level, fmt::string_view format, fmt::format_args args);

template <typename... Args>
void at(Level level, fmt::format_string<Args...> format, Args&&... args) {
  write(level, format, fmt::make_format_args(args...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, format, fmt::make_format_args(args...));
}
template <typename... Args>
void critical(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kCritical, format, fmt::make_format_args(args...));
}

}  // namespace log
}  // namespace refrain
