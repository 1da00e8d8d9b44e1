#pragma once
// All-reduce of small messages over peer memory, one kernel: every rank pushes its data in packets
// that carry the exchange's number into each peer's buffer, polls its own buffer, and sums in rank
// order in float32, so that all ranks hold equal bits. Every poll has a deadline; a failure is told
// through a word in host memory and ends all later exchanges at once.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/kernel_table.h"

namespace refrain::worker {

inline constexpr int kMaxPeers = 8;
inline constexpr int kExchangeThreads = 256;
inline constexpr size_t kThreadBytes = 8;                    // of data, in one packet of 16
inline constexpr size_t kExchangeBytes = size_t{256} << 10;  // the largest message
inline constexpr int kExchangeBlocks =
    static_cast<int>(kExchangeBytes / (kThreadBytes * kExchangeThreads));

// Bytes of the buffer that each rank offers its peers: [2][size][packets of the largest message].
constexpr size_t exchange_buffer_bytes(int size) {
  return 2 * static_cast<size_t>(size) * 2 * kExchangeBytes;
}

// Device addresses; the same on every launch, so that launches may be recorded.
struct PeerExchange {
  int rank = 0;
  int size = 1;
  uint4* buffers[kMaxPeers] = {};  // every rank's buffer, as this device sees it
  uint32_t* counters = nullptr;    // [kExchangeBlocks] exchanges each block has made
  uint32_t* broken = nullptr;      // [1] on the device: no further exchange
  // [1] in host memory the device can write: 0; 1 + rank that did not come; kAbort from the host.
  uint32_t* verdict = nullptr;
  uint64_t deadline_ns = 0;
};
inline constexpr uint32_t kAbort = 0xffffffffu;

// data [bytes] of float32 or bfloat16, 8-byte aligned, at most kExchangeBytes; in place.
void launch_peer_all_reduce(kernels::StreamRef stream, const PeerExchange& exchange, void* data,
                            DType dtype, size_t bytes);

}  // namespace refrain::worker
