#pragma once
// Collectives over peer memory, one kernel each. All-gather: every rank pushes its data into each
// peer's buffer. All-reduce, alone or with the residual addition and RMSNorm behind it: of small
// messages likewise, and every rank sums; of larger ones each rank sums its share and pushes the
// result. Sums are made in rank order in float32, so
// that all ranks hold equal bits. Every poll has a deadline; a failure is told through a word in
// host memory and ends all later exchanges at once.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/kernel_table.h"

namespace refrain::worker {

inline constexpr int kMaxPeers = 8;
inline constexpr int kExchangeThreads = 256;
inline constexpr size_t kThreadBytes = 16;                 // of a message, one packet
inline constexpr size_t kExchangeBytes = size_t{8} << 20;  // the largest message
inline constexpr size_t kExchangeWarps = kExchangeBytes / (kThreadBytes * 32);

// Bytes of the buffer that each rank offers its peers: [2][size][the largest message].
constexpr size_t exchange_buffer_bytes(int size) {
  return 2 * static_cast<size_t>(size) * kExchangeBytes;
}

// Device addresses; the same on every launch, so that launches may be recorded.
struct PeerExchange {
  int rank = 0;
  int size = 1;
  uint4* buffers[kMaxPeers] = {};  // every rank's buffer, as this device sees it
  uint32_t* counters = nullptr;    // [kExchangeWarps] exchanges each warp has made
  uint32_t* broken = nullptr;      // [1] on the device: no further exchange
  uint32_t* looked = nullptr;      // [1] on the device: when `verdict` was last read
  // [1] in host memory the device can write: 0; 1 + rank that did not come; kAbort from the host.
  uint32_t* verdict = nullptr;
  uint64_t deadline_ns = 0;
};
inline constexpr uint32_t kAbort = 0xffffffffu;

// The words on the device that an exchange counts in, in one piece of memory, all 0 at first.
inline constexpr size_t kExchangeCounterBytes = (kExchangeWarps + 2) * sizeof(uint32_t);
inline void place_counters(PeerExchange& exchange, void* memory) {
  exchange.counters = static_cast<uint32_t*>(memory);
  exchange.broken = exchange.counters + kExchangeWarps;
  exchange.looked = exchange.broken + 1;
}

// Whether every rank sums all of a message of `bytes`, or only its share.
bool sums_everywhere(size_t bytes, int size);

// data [bytes] of float32 or bfloat16, 16-byte aligned, at most kExchangeBytes; in place.
void launch_peer_all_reduce(kernels::StreamRef stream, const PeerExchange& exchange, void* data,
                            DType dtype, size_t bytes);

// Which rows of a gather are live: those of the message that lie below *live rows of row_bytes, of
// which the message begins at `begin`. Null: all of it.
struct GatherRows {
  const int32_t* live = nullptr;  // on the device, the same number on all ranks
  size_t row_bytes = 0;
  size_t begin = 0;
};

// out[rank_bytes * i ...] = rank i's in [bytes] of float32 or bfloat16, at most kExchangeBytes;
// `in` 16-byte aligned. Bits are kept, but for NaNs of all ones, which become others.
void launch_peer_all_gather(kernels::StreamRef stream, const PeerExchange& exchange, const void* in,
                            void* out, size_t bytes, size_t rank_bytes, const GatherRows& rows);

// Whether rows of these sizes, types and alignments are for the kernel below.
bool can_peer_add_rms_norm(const kernels::AddRmsNormArgs& args);

// delta = sum over ranks of delta (its memory is left alone), then add_rms_norm(args), bit for bit
// as the two ops.
void launch_peer_add_rms_norm(kernels::StreamRef stream, const PeerExchange& exchange,
                              const kernels::AddRmsNormArgs& args);

// Where the linears that make such a delta of `rows` rows send it; size 0: not of such rows.
kernels::PeerPackets sent_rows(const PeerExchange& exchange, int32_t rows, int64_t cols);

// launch_peer_add_rms_norm where the launch before it, on every rank, was a linear that sent its
// result to sent_rows(): delta's memory is not read.
void launch_peer_add_rms_norm_sent(kernels::StreamRef stream, const PeerExchange& exchange,
                                   const kernels::AddRmsNormArgs& args);

}  // namespace refrain::worker
