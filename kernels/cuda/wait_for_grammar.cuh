#pragma once
// Waiting for what the host makes of a grammar while the step runs, in pinned memory.

#include <cstdint>

#include "kernels/core/step_state.h"
#include "kernels/cuda/peer_packets.cuh"

namespace refrain::kernels {

// By one thread: whether the host has made what `ready` stands for, for this turn, in time.
__device__ inline bool wait_for_grammar(const uint32_t* ready, uint32_t turn) {
  const uint64_t start = now_ns();
  while (true) {
    uint32_t at;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(at) : "l"(ready) : "memory");
    if (at == turn) return true;
    if (now_ns() - start > uint64_t{kGrammarPatienceSeconds} * 1'000'000'000) return false;
    __nanosleep(500);
  }
}

}  // namespace refrain::kernels
