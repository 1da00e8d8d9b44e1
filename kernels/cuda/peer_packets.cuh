#pragma once
// Packets of 16 bytes in peer memory: written into another rank's memory, polled in one's own.
// Every poll has a deadline. What makes a packet whole is its user's: 8 bytes of data beside the
// number of the exchange they belong to, twice; or that none of its words is kEmpty.

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

inline constexpr int kPollsALook = 512;  // between two looks at the clock
inline constexpr int kLookBits = 17;     // 2^17 ns between two reads of the host's word

__device__ inline uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__device__ inline void push_words(uint4* to, const uint4& words) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ inline void push_word(void* to, uint32_t word) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ inline uint4 poll_words(const uint4* from) {
  uint4 words;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

// Whether this thread is the one that reads the host's word now. Such reads take 0.6 us each, one
// after the other: by every warp that waits they take longer than what it waits for, whereupon the
// other ranks wait, and read.
__device__ inline bool looks_at_host(uint32_t* looked, uint64_t now) {
  const auto period = static_cast<uint32_t>(now >> kLookBits);
  return *reinterpret_cast<volatile uint32_t*>(looked) != period &&
         atomicExch(looked, period) != period;
}

// Whether a wait for `source` that began at `start` is over without it: the deadline has passed, or
// the host asked to stop. Then everyone on this rank knows, and the host is told which rank did not
// come. Exchange: has broken, looked, verdict, deadline_ns.
template <class Exchange>
__device__ bool gives_up(const Exchange& exchange, uint64_t start, int source) {
  auto* broken = reinterpret_cast<volatile uint32_t*>(exchange.broken);
  auto* verdict = reinterpret_cast<volatile uint32_t*>(exchange.verdict);
  const uint64_t now = now_ns();
  const bool told = *broken != 0 || (looks_at_host(exchange.looked, now) && *verdict != 0);
  if (!told && now - start < exchange.deadline_ns) return false;
  if (!told) *verdict = static_cast<uint32_t>(source) + 1;
  *broken = 1;
  __threadfence_system();
  return true;
}

// What nobody sends, where "nothing has come" is kEmpty: a NaN of float32, two of bfloat16.
constexpr uint32_t kEmpty = 0xffffffffu, kOtherNan = 0x7fffffffu;
__device__ inline uint32_t sendable(uint32_t word) { return word == kEmpty ? kOtherNan : word; }

__device__ inline bool is_whole(const uint4& packet, uint32_t number) {
  return packet.y == number && packet.w == number;
}

}  // namespace refrain::kernels
