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

void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

SharedBarrier::Outcome SharedBarrier::arrive_and_wait(uint32_t members, Deadline deadline,
                                                      int spins) {
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (generation & kBroken) return Outcome::kBroken;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    arrived_.store(0, std::memory_order_relaxed);
    uint32_t expected = generation;
    const uint32_t next = (generation + 1) & ~kBroken;
    const bool opened =
        generation_.compare_exchange_strong(expected, next, std::memory_order_acq_rel);
    futex_wake_all(generation_);
    return opened ? Outcome::kPassed : Outcome::kBroken;
  }
  const bool moved = wait_until(
      generation_, [generation](uint32_t now) { return now != generation; }, deadline, spins);
  if (!moved) {
    // The last member may arrive just now: whoever changes the word first decides for all.
    uint32_t expected = generation;
    if (generation_.compare_exchange_strong(expected, generation | kBroken,
                                            std::memory_order_acq_rel)) {
      futex_wake_all(generation_);
      return Outcome::kDeadline;
    }
  }
  const uint32_t now = generation_.load(std::memory_order_acquire);
  const bool passed = now == ((generation + 1) & ~kBroken) || !(now & kBroken);
  return passed ? Outcome::kPassed : Outcome::kBroken;
}

void SharedBarrier::abort() {
  generation_.fetch_or(kBroken, std::memory_order_acq_rel);
  futex_wake_all(generation_);
}

}  // namespace refrain::ipc
