#include "runtime/base/last_error.h"

#include <new>
#include <system_error>

namespace refrain {

Error error_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
    return {ErrorCode::kUnavailable, "the system gave no memory (see ulimit -v)", {}};
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && (system->code() == std::errc::resource_unavailable_try_again ||
                            system->code() == std::errc::not_enough_memory))
    return {ErrorCode::kUnavailable,
            fmt::format("the system gave no thread or memory (see ulimit -u and -v): {}",
                        system->what()),
            {}};
  return {ErrorCode::kInternal, exception.what(), {}};
}

}  // namespace refrain
