#pragma once
// Waiting on a word in shared memory, across processes: futex calls, a wait that spins before it
// sleeps, and a barrier with a deadline. Everything here may live in a zero-filled SharedSegment.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace refrain::ipc {

using Deadline = std::chrono::steady_clock::time_point;

static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while *word == expected, at most until the deadline. False when that passed; true may be
// spurious.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline);
void futex_wake_all(std::atomic<uint32_t>& word);

// A hint to the processor inside spin loops.
void spin_pause();

// Waits until done(value of word) holds: `spins` looks first, then sleep. Whoever changes the word
// calls futex_wake_all. False when the deadline passed.
template <class Done>
bool wait_until(const std::atomic<uint32_t>& word, Done done, Deadline deadline, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (done(word.load(std::memory_order_acquire))) return true;
    spin_pause();
  }
  while (true) {
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (done(seen)) return true;
    if (!futex_wait(word, seen, deadline)) return done(word.load(std::memory_order_acquire));
  }
}

// All `members` arrive, then all go on; reusable. Placed in shared memory; zero bytes are its
// initial state. abort() (or a passed deadline of one member) breaks it for everybody, for ever.
class SharedBarrier {
 public:
  enum class Outcome { kPassed, kDeadline, kBroken };

  Outcome arrive_and_wait(uint32_t members, Deadline deadline, int spins);
  void abort();
  bool is_broken() const { return (generation_.load(std::memory_order_acquire) & kBroken) != 0; }
  uint32_t arrived() const { return arrived_.load(std::memory_order_acquire); }

 private:
  static constexpr uint32_t kBroken = 1u << 31;
  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> generation_{0};  // kBroken is sticky
};

}  // namespace refrain::ipc
