#include "worker/device/host/wait.h"

#include <sched.h>

namespace refrain::worker {

bool WakeWord::wait_while(uint32_t old, const WaitPolicy& policy, std::chrono::nanoseconds sleep) {
  using Clock = std::chrono::steady_clock;
  const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
  constexpr int kPausesPerClockRead = 16;
  Clock::time_point end;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (changed()) return true;
      ipc::spin_pause();
    }
    if (end == Clock::time_point{}) end = Clock::now() + policy.spin;
  } while (Clock::now() < end);
  for (int i = 0; i < policy.yields; ++i) {
    if (changed()) return true;
    sched_yield();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  ipc::futex_wait(value, old, Clock::now() + sleep);  // returns at once if it has changed
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return changed();
}

}  // namespace refrain::worker
