#include "worker/device/host/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "runtime/base/check.h"

namespace refrain::worker {

using std::chrono::nanoseconds;

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{seconds.count(), (timeout - seconds).count()};
  const long rc = syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
  REFRAIN_CHECK(rc == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT,
                "futex wait failed with errno {}", errno);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

bool WakeWord::wait_while(uint32_t old, const WaitPolicy& policy, nanoseconds sleep) {
  const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
  constexpr int kPausesPerClockRead = 16;
  std::chrono::steady_clock::time_point end;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (changed()) return true;
      cpu_pause();
    }
    if (end == std::chrono::steady_clock::time_point{}) {
      end = std::chrono::steady_clock::now() + policy.spin;
    }
  } while (std::chrono::steady_clock::now() < end);
  for (int i = 0; i < policy.yields; ++i) {
    if (changed()) return true;
    sched_yield();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (value.load(std::memory_order_seq_cst) == old) futex_wait(value, old, sleep);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return changed();
}

}  // namespace refrain::worker
