#pragma once
// The host's random numbers on the device: Philox4x32-10 (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", 2011) with key = seed and counter = position; kernels/host/sampling.h.

#include <cstdint>

namespace refrain::kernels {

// In [0, 1): the first 53 of the 64 bits word[1] : word[0].
__device__ inline double uniform_draw(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t bits = uint64_t{c1} << 32 | c0;
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace refrain::kernels
