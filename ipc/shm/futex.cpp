#include "ipc/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "runtime/base/check.h"

namespace refrain::ipc {
namespace {

// std::chrono::steady_clock is CLOCK_MONOTONIC, which is what an absolute futex deadline counts.
timespec to_timespec(Deadline deadline) {
  const auto since = std::max(deadline.time_since_epoch(), Deadline::duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds);
  return {static_cast<time_t>(seconds.count()), static_cast<long>(rest.count())};
}

}  // namespace

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  const timespec until = to_timespec(deadline);
  const long rc = ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr,
                            FUTEX_BITSET_MATCH_ANY);
  if (rc == 0 || errno == EAGAIN || errno == EINTR) return true;
  REFRAIN_CHECK(errno == ETIMEDOUT, "futex wait: {}", std::strerror(errno));
  return false;
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void spin_pause() { __builtin_ia32_pause(); }

}  // namespace refrain::ipc
