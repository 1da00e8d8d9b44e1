#pragma once
// Errors as values. A function that can fail for a reason its caller should handle returns
// Result<T>; an exception (FatalError, check.h) means this process is broken and ends.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace refrain {

enum class ErrorCode : uint8_t {
  kInvalidArgument,  // the caller's input is wrong: HTTP 400, exit 64
  kNotFound,         // a file, model or route that is not there: HTTP 404, exit 64
  kUnauthenticated,  // HTTP 401
  kTooLarge,         // HTTP 413
  kOverloaded,       // HTTP 429, exit 75
  kUnavailable,      // a peer is gone or not ready yet: HTTP 503, exit 75
  kCancelled,        // the client left: HTTP 499
  kDeadline,         // HTTP 504
  kInternal,         // HTTP 500, exit 70
};

// Exit codes of every program (docs/CONTRACTS.md, R-8).
inline constexpr int kExitOk = 0;
inline constexpr int kExitConfig = 64;
inline constexpr int kExitInternal = 70;
inline constexpr int kExitTryAgain = 75;

int exit_code(ErrorCode code);
const char* to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one sentence that names the culprit and what would be right
  std::string field;    // the option or request field at fault; may be empty
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...), {}});
}

// The same, naming the field at fault.
template <class... Args>
tl::unexpected<Error> fail_field(std::string field, fmt::format_string<Args...> format,
                                 Args&&... args) {
  return tl::make_unexpected(Error{ErrorCode::kInvalidArgument,
                                   fmt::format(format, std::forward<Args>(args)...),
                                   std::move(field)});
}

inline tl::unexpected<Error> forward_error(Error error) {
  return tl::make_unexpected(std::move(error));
}

}  // namespace refrain

// Evaluates a Status or Result and returns its error from the calling function if it has one.
#define REFRAIN_RETURN_IF_ERROR(expression)                        \
  do {                                                             \
    if (auto status_ = (expression); !status_)                     \
      return ::refrain::forward_error(std::move(status_).error()); \
  } while (false)

// Evaluates a Result; on success moves its value into `target`, else returns the error.
#define REFRAIN_ASSIGN_OR_RETURN(target, expression) \
  REFRAIN_ASSIGN_OR_RETURN_(REFRAIN_CONCAT_(result_, __LINE__), target, expression)
#define REFRAIN_ASSIGN_OR_RETURN_(temporary, target, expression)                 \
  auto temporary = (expression);                                                 \
  if (!temporary) return ::refrain::forward_error(std::move(temporary).error()); \
  target = std::move(*temporary)
#define REFRAIN_CONCAT_(a, b) REFRAIN_CONCAT2_(a, b)
#define REFRAIN_CONCAT2_(a, b) a##b
