#pragma once
// One row of the vocabulary shared by a cluster of blocks: block i holds tokens
// [i * slice, (i + 1) * slice) in shared memory. Reductions over the whole row come out the same on
// every thread of the cluster; sums are of 64-bit integers, so that no order changes them.

#include <cooperative_groups.h>

#include <cstdint>

namespace refrain::kernels {

inline constexpr int kRowCluster = 8;    // blocks a row
inline constexpr int kRowThreads = 512;  // threads a block
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kRowWays = 7;  // sums reduced at once

struct RowShared {
  unsigned long long warp[kRowWarps][kRowWays];
  unsigned long long block[2][kRowWays];  // by turns: a block may be one reduction ahead
};

struct ClusterRow {
  RowShared* shared;
  int32_t begin = 0, count = 0;  // this block's tokens
  int turn = 0;

  __device__ unsigned rank() const { return cooperative_groups::this_cluster().block_rank(); }

  // values[i] = the sum (or maximum) of values[i] over the cluster's threads.
  template <int kCount, bool kMax = false>
  __device__ void reduce(unsigned long long (&values)[kCount]) {
    static_assert(kCount <= kRowWays);
    const auto join = [](unsigned long long a, unsigned long long b) {
      return kMax ? (a > b ? a : b) : a + b;
    };
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      for (int offset = 16; offset > 0; offset /= 2) {
        values[i] = join(values[i], __shfl_xor_sync(~0u, values[i], offset));
      }
      if (lane == 0) shared->warp[warp][i] = values[i];
    }
    __syncthreads();
    if (threadIdx.x < kCount) {
      unsigned long long all = shared->warp[0][threadIdx.x];
      for (int w = 1; w < kRowWarps; ++w) all = join(all, shared->warp[w][threadIdx.x]);
      shared->block[turn][threadIdx.x] = all;
    }
    auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = shared->block[turn][i];
    for (unsigned r = 0; r < kRowCluster; ++r) {
      if (r == cluster.block_rank()) continue;
      const RowShared* other = cluster.map_shared_rank(shared, r);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = join(values[i], other->block[turn][i]);
    }
    turn ^= 1;
  }

  __device__ unsigned long long sum(unsigned long long value) {
    unsigned long long values[1] = {value};
    reduce<1>(values);
    return values[0];
  }
  __device__ unsigned long long max(unsigned long long value) {
    unsigned long long values[1] = {value};
    reduce<1, true>(values);
    return values[0];
  }

  // The first token, in ascending order, up to and including which the weights sum to more than
  // `target`; `weight(i)` is that of local token i. -1: none. A warp walks tokens of its own range.
  template <class Weight>
  __device__ int32_t find_in_order(unsigned long long target, Weight weight) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int32_t share = (count + kRowWarps * 32 - 1) / (kRowWarps * 32) * 32;
    const int32_t first = min(count, warp * share), end = min(count, first + share);
    unsigned long long mine = 0;
    for (int32_t i = first + lane; i < end; i += 32) mine += weight(i);
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
    __shared__ unsigned long long warp_sums[kRowWarps];
    __syncthreads();
    if (lane == 0) warp_sums[warp] = mine;
    __syncthreads();
    unsigned long long before = 0, block_sum = 0;
    for (int w = 0; w < kRowWarps; ++w) {
      if (w < warp) before += warp_sums[w];
      block_sum += warp_sums[w];
    }
    before += sum_before(block_sum);
    int32_t found = -1;
    if (before <= target && target < before + mine) {
      for (int32_t i = first; i < end && found < 0; i += 32) {
        const unsigned long long own = i + lane < end ? weight(i + lane) : 0;
        unsigned long long scan = own;
        for (int offset = 1; offset < 32; offset *= 2) {
          const unsigned long long other = __shfl_up_sync(~0u, scan, offset);
          if (lane >= offset) scan += other;
        }
        const unsigned hit = __ballot_sync(~0u, own > 0 && before + scan > target);
        if (hit != 0) found = begin + i + __ffs(static_cast<int>(hit)) - 1;
        before += __shfl_sync(~0u, scan, 31);
      }
    }
    return static_cast<int32_t>(max(static_cast<unsigned long long>(found + 1))) - 1;
  }

 private:
  // The sum of `value`, one a block, over the blocks of lower rank.
  __device__ unsigned long long sum_before(unsigned long long value) {
    auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) shared->block[turn][0] = value;
    cluster.sync();
    unsigned long long before = 0;
    for (unsigned r = 0; r < cluster.block_rank(); ++r) {
      before += cluster.map_shared_rank(shared, r)->block[turn][0];
    }
    turn ^= 1;
    return before;
  }
};

}  // namespace refrain::kernels
