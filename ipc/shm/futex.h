#pragma once
// Waiting on a word in shared memory, across processes: futex calls with a deadline, and a pause
// for loops that spin before they sleep.

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

}  // namespace refrain::ipc
