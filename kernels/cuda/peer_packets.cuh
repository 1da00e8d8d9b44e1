#pragma once
// Packets of peer memory: 8 bytes of data beside the number of the exchange they belong to, twice,
// so that a packet of 16 bytes is whole when both numbers are right. Written into another rank's
// memory, polled in one's own. Every poll has a deadline.

#include <cstdint>

#include "kernels/core/op_args.h"

namespace refrain::kernels {

__device__ inline void push_packet(uint4* to, uint32_t low, uint32_t high, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low), "r"(number),
               "r"(high), "r"(number)
               : "memory");
}

__device__ inline uint4 poll_packet(const uint4* from) {
  uint4 packet;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
               : "l"(from)
               : "memory");
  return packet;
}

__device__ inline bool is_whole(const uint4& packet, uint32_t number) {
  return packet.y == number && packet.w == number;
}

// Polls until the packet of exchange `number` is there. Gives up when the deadline has passed or
// the host asked to stop; then everyone on this rank knows, and the host is told which rank did not
// come. Not inlined: kernels that wait in many places must stay small.
__device__ inline __noinline__ uint4 await_packet(const PeerSum* sum, const uint4* from,
                                                  uint32_t number, int32_t source) {
  constexpr int kPollsALook = 512;  // between two looks at the clock and at the host's word
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
#pragma unroll 1
  for (int polls = 1;; ++polls) {
    const uint4 packet = poll_packet(from);
    if (is_whole(packet, number)) return packet;
    if (polls % kPollsALook != 0) continue;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    const bool told = *reinterpret_cast<volatile uint32_t*>(sum->broken) != 0 ||
                      *reinterpret_cast<volatile uint32_t*>(sum->verdict) != 0;
    if (!told && now - start < sum->deadline_ns) continue;
    if (!told) {
      *reinterpret_cast<volatile uint32_t*>(sum->verdict) = static_cast<uint32_t>(source) + 1;
    }
    *reinterpret_cast<volatile uint32_t*>(sum->broken) = 1;
    __threadfence_system();
    return packet;
  }
}

}  // namespace refrain::kernels
