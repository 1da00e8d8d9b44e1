#pragma once
// Sums over ranks between two fused_linears: where packets lie, and what a block has exchanged.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/peer_packets.cuh"

namespace refrain::kernels {

// Four columns.
__device__ inline uint4* packet_of(const PeerSum& sum, int32_t at_rank, int32_t source, int32_t row,
                                   int64_t col, int64_t cols) {
  return static_cast<uint4*>(sum.slots[at_rank]) + (source * kFewRows + row) * (cols / 4) + col / 4;
}

// The exchanges that this block has made at a place. Every launch there has the same blocks, on
// every rank.
__device__ inline uint32_t* push_counter(const PeerSum& sum) { return sum.counters + blockIdx.x; }
__device__ inline uint32_t* pull_counter(const PeerSum& sum) {
  return sum.counters + kPeerSumBlocks + blockIdx.x;
}

}  // namespace refrain::kernels
