#pragma once
// Sums over ranks between two fused_linears: where packets lie, what a block has exchanged, and
// pulling the sum of what all ranks pushed.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/peer_packets.cuh"

namespace refrain::kernels::fused_gemv {

__device__ inline uint4* packet_of(const PeerSum& sum, int32_t at_rank, int32_t source, int32_t row,
                                   int64_t col, int64_t cols) {
  return static_cast<uint4*>(sum.slots[at_rank]) + (source * kFewRows + row) * (cols / 4) + col / 4;
}

// Eight columns of the sum of what the ranks pushed; nothing in particular once the group is
// broken.
__device__ inline void pull_columns(const PeerSum& pull, int32_t row, int32_t col, int64_t cols,
                                    uint32_t number, float (&sum)[8]) {
  uint4 packets[kMaxPeerRanks][2];
#pragma unroll
  for (int32_t r = 0; r < kMaxPeerRanks; ++r) {  // all on their way together
    if (r >= pull.size) continue;
    const uint4* from = packet_of(pull, pull.rank, r, row, col, cols);
    packets[r][0] = poll_words(from);
    packets[r][1] = poll_words(from + 1);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = 0;
#pragma unroll
  for (int32_t r = 0; r < kMaxPeerRanks; ++r) {
    if (r >= pull.size) continue;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      uint4& packet = packets[r][p];
      if (!is_whole(packet, number)) {
        packet = await_packet(&pull, packet_of(pull, pull.rank, r, row, col, cols) + p, number, r);
      }
      sum[p * 4] += low_half(packet.x);
      sum[p * 4 + 1] += high_half(packet.x);
      sum[p * 4 + 2] += low_half(packet.z);
      sum[p * 4 + 3] += high_half(packet.z);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = rounded(sum[i], DType::kBFloat16);
}

// The exchange that this block makes at a place: one more than it has made. Every launch there has
// the same blocks, on every rank.
__device__ inline uint32_t* counter_of(const PeerSum& sum, bool pull) {
  return sum.counters + (pull ? kPeerSumBlocks : 0) + blockIdx.x;
}

}  // namespace refrain::kernels::fused_gemv
