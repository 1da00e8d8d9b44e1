#include "runtime/base/last_error.h"

#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

#include "runtime/base/log.h"

namespace refrain {
namespace {

bool is_lack(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again ||
         error.code() == std::errc::not_enough_memory;
}

// Without an allocation: there may be no memory for one.
void end_for_want(std::string_view what) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, what.data(), what.size());
  std::_Exit(kExitTryAgain);
}

void on_terminate() {
  try {
    if (const std::exception_ptr exception = std::current_exception())
      std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    end_for_want("the system gave no memory (see ulimit -v)\n");
  } catch (const std::system_error& error) {
    if (is_lack(error))
      end_for_want("the system gave no thread or memory (see ulimit -u and -v)\n");
  } catch (...) {  // a fault inside
  }
  std::abort();
}

}  // namespace

Error error_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
    return {ErrorCode::kUnavailable, "the system gave no memory (see ulimit -v)", {}};
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && is_lack(*system))
    return {ErrorCode::kUnavailable,
            fmt::format("the system gave no thread or memory (see ulimit -u and -v): {}",
                        system->what()),
            {}};
  return {ErrorCode::kInternal, exception.what(), {}};
}

int end_by(const std::exception& exception) {
  const Error broken = error_of(exception);
  log::critical("{}", broken.message);
  return exit_code(broken.code);
}

void end_by_what_is_lacking() { std::set_terminate(on_terminate); }

}  // namespace refrain
