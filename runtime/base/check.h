#pragma once
// REFRAIN_CHECK guards an invariant in every build. When it fails this process is broken: the
// exception is caught once, in main or in the worker's loop, reported, and the process exits 70.

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace refrain {

class FatalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace refrain

// REFRAIN_CHECK(condition, "format {}", args...): throws FatalError unless the condition holds.
#define REFRAIN_CHECK(condition, ...)                                                      \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::refrain::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
