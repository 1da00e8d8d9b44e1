#pragma once
// Waiting for a 32-bit word that another thread or process changes: spin, yield, then sleep on a
// futex. A WakeWord may lie in shared memory. Any thread.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "ipc/shm/futex.h"

namespace refrain::worker {

// How long to spin, and how often to yield, before sleeping. Spinning is quickest while the thread
// waited for runs on a core of its own; a yield gives that thread this core if it has none.
// Measured on a busy 2-core machine: spinning for 50 us made a small all_reduce ten times slower
// than yielding.
struct WaitPolicy {
  std::chrono::nanoseconds spin{0};
  int yields = 0;
};

inline constexpr WaitPolicy kSpinWait{std::chrono::microseconds(5), 100};
inline constexpr WaitPolicy kCrowdedWait{std::chrono::nanoseconds(400), 32};

// A word with waiters. set() costs a system call only when somebody sleeps.
struct alignas(64) WakeWord {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  void set(uint32_t next) {
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) ipc::futex_wake_all(value);
  }
  // Returns when the value differs from `old` (true), or after spinning, yielding and one sleep of
  // at most `sleep` (the value may still be `old`: false). Sleeps may end early.
  bool wait_while(uint32_t old, const WaitPolicy& policy, std::chrono::nanoseconds sleep);
};

}  // namespace refrain::worker
