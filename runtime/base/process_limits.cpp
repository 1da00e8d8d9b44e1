#include "runtime/base/process_limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace refrain {

Status raise_descriptor_limit(uint64_t least) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return fail(ErrorCode::kInternal, "the descriptor limit cannot be read: {}",
                std::strerror(errno));
  if (limit.rlim_max < least)
    return fail(ErrorCode::kInvalidArgument,
                "at most {} descriptors may be open, {} are needed; raise the hard limit "
                "(ulimit -Hn)",
                limit.rlim_max, least);
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return fail(ErrorCode::kInternal, "the descriptor limit cannot be raised to {}: {}",
                limit.rlim_max, std::strerror(errno));
  return {};
}

void survive_file_size_limit() { ::signal(SIGXFSZ, SIG_IGN); }

}  // namespace refrain
