#pragma once
// One row of the vocabulary shared by a cluster of blocks: block i holds tokens
// [i * slice, (i + 1) * slice) in shared memory. The Team of sample_select.cuh. Reductions over the
// whole row come out the same on every thread of the cluster; sums are of 64-bit integers, so that
// no order changes them. What is double here is used by turns: between two uses of the same copy
// lies a barrier of another use.

#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/sample_select.cuh"

namespace refrain::kernels {

inline constexpr int kRowCluster = 8;    // blocks a row
inline constexpr int kRowThreads = 256;  // threads a block
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kRowWays = 2;                         // values reduced at once
inline constexpr uint32_t kRowBins = kBins / kRowCluster;  // added up by a block
inline constexpr int kRowList = 1024;
static_assert(kRowBins <= kRowThreads);

struct RowShared {
  union {
    uint32_t parts[2 * kBins];  // of this block's tokens: low 12 bits, the bits above
    Sum list[kRowList];
  };
  Sum bins[kRowBins];  // [rank * kRowBins, …) of the whole row
  Sum warp[kRowWarps][kRowWays];
  Sum block[2][kRowWays];
  Sum scanned[2][kRowWarps];
  Sum hit[2][3];
  Found told[2];
  uint32_t listed[2];
};

struct ClusterRow {
  static constexpr int kItems = kBins / kRowThreads;
  static constexpr int kListTokens = kRowList;
  static constexpr int kSureTokens = kRowCluster * kRowWarps;  // one a warp

  using Shares = BinShares<kItems>;

  RowShared* shared;
  const float* logits;           // shared, [count], then NaN up to a multiple of 4
  int32_t begin = 0, count = 0;  // this block's tokens
  int turn = 0, scan_turn = 0, hit_turn = 0, list_turn = 0;

  __device__ static auto cluster() { return cooperative_groups::this_cluster(); }
  __device__ unsigned rank() const { return cluster().block_rank(); }
  __device__ bool leads() const { return rank() == 0; }
  __device__ const RowShared* of(unsigned rank) const {
    return cluster().map_shared_rank(shared, rank);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  // f(token, logit), NaN for tokens past the end.
  template <class F>
  __device__ void each_token(F f) const {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < count; i += kRowThreads * 4) {
      const float4 x = *reinterpret_cast<const float4*>(logits + i);
      const int32_t token = begin + i;
      f(token, x.x), f(token + 1, x.y), f(token + 2, x.z), f(token + 3, x.w);
    }
  }

  // values[i] = the sum (or maximum) of values[i] over the cluster's threads.
  template <int kCount, bool kMax = false>
  __device__ void reduce(Sum (&values)[kCount]) {
    static_assert(kCount <= kRowWays);
    const auto join = [](Sum a, Sum b) { return kMax ? (a > b ? a : b) : a + b; };
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      for (int offset = 16; offset > 0; offset /= 2) {
        values[i] = join(values[i], __shfl_xor_sync(~0u, values[i], offset));
      }
      if (lane() == 0) shared->warp[warp()][i] = values[i];
    }
    __syncthreads();
    if (threadIdx.x < kCount) {
      Sum all = shared->warp[0][threadIdx.x];
      for (int w = 1; w < kRowWarps; ++w) all = join(all, shared->warp[w][threadIdx.x]);
      shared->block[turn][threadIdx.x] = all;
    }
    cluster().sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = of(0)->block[turn][i];
    for (unsigned r = 1; r < kRowCluster; ++r) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = join(values[i], of(r)->block[turn][i]);
    }
    turn ^= 1;
  }
  __device__ Sum sum(Sum value) {
    Sum values[1] = {value};
    reduce<1>(values);
    return values[0];
  }
  __device__ Sum max(Sum value) {
    Sum values[1] = {value};
    reduce<1, true>(values);
    return values[0];
  }

  __device__ Found share(const Found& mine) {
    if (leads() && threadIdx.x == 0) shared->told[turn] = mine;
    cluster().sync();
    const Found told = of(0)->told[turn];
    turn ^= 1;
    return told;
  }

  __device__ static uint32_t item(int j) {
    return threadIdx.x * static_cast<uint32_t>(kItems) + static_cast<uint32_t>(j);
  }

  __device__ void scan(Shares& shares) {
    Sum mine = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) mine += shares.own[j];
    Sum through = mine;
    for (int offset = 1; offset < 32; offset *= 2) {
      const Sum other = __shfl_up_sync(~0u, through, offset);
      if (lane() >= offset) through += other;
    }
    if (lane() == 31) shared->scanned[scan_turn][warp()] = through;
    __syncthreads();
    shares.before = through - mine;
    shares.total = 0;
    for (int w = 0; w < kRowWarps; ++w) {
      const Sum all = shared->scanned[scan_turn][w];
      if (w < warp()) shares.before += all;
      shares.total += all;
    }
    scan_turn ^= 1;
  }

  __device__ BinHit find(const Shares& shares, Sum needed) {
    Sum before = shares.before;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (before < needed && needed <= before + shares.own[j]) {
        shared->hit[hit_turn][0] = item(j);
        shared->hit[hit_turn][1] = before;
        shared->hit[hit_turn][2] = shares.own[j];
      }
      before += shares.own[j];
    }
    __syncthreads();
    const Sum* hit = shared->hit[hit_turn];
    hit_turn ^= 1;
    return {static_cast<uint32_t>(hit[0]), hit[1], hit[2]};
  }

  __device__ Sum through(const Shares& shares, uint32_t index) {
    Sum sum = shares.before;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      sum += shares.own[j];
      if (item(j) == index) shared->hit[hit_turn][0] = sum;
    }
    __syncthreads();
    sum = shared->hit[hit_turn][0];
    hit_turn ^= 1;
    return sum;
  }

  __device__ void clear_bins() {
    for (uint32_t i = threadIdx.x; i < 2 * kBins; i += kRowThreads) shared->parts[i] = 0;
    __syncthreads();
  }
  // There are no 64-bit additions to shared memory; a block's tokens fit both halves.
  __device__ void add_units(uint32_t bin, uint32_t units) {
    atomicAdd(&shared->parts[bin], units & 0xfffu);
    atomicAdd(&shared->parts[kBins + bin], units >> 12);
  }
  __device__ void add_count(uint32_t bin) { atomicAdd(&shared->parts[bin], 1u); }

  // Each block adds up a part of the bins, then all read the parts.
  template <bool kWide>
  __device__ Shares read_bins() {
    cluster().sync();
    if (threadIdx.x < kRowBins) {
      const uint32_t bin = rank() * kRowBins + threadIdx.x;
      Sum low = 0, high = 0;
#pragma unroll
      for (unsigned r = 0; r < kRowCluster; ++r) {
        low += of(r)->parts[bin];
        if (kWide) high += of(r)->parts[kBins + bin];
      }
      shared->bins[threadIdx.x] = (high << 12) + low;
    }
    cluster().sync();
    Shares shares;
    const RowShared* owner = of(item(0) / kRowBins);
#pragma unroll
    for (int j = 0; j < kItems; ++j) shares.own[j] = owner->bins[item(j) % kRowBins];
    return shares;
  }

  __device__ void clear_list() {
    if (threadIdx.x == 0) shared->listed[list_turn] = 0;
    __syncthreads();
  }
  __device__ void add_to_list(Sum ranked) {
    const uint32_t at = atomicAdd(&shared->listed[list_turn], 1u);
    if (at < kRowList) shared->list[at] = ranked;
  }
  // The leader appends the other blocks' lists to its own.
  __device__ int32_t end_list() {
    cluster().sync();
    uint32_t all = 0;
    for (unsigned r = 0; r < kRowCluster; ++r) all += of(r)->listed[list_turn];
    if (leads() && all <= kRowList) {
      uint32_t at = shared->listed[list_turn];
      for (unsigned r = 1; r < kRowCluster; ++r) {
        const uint32_t n = of(r)->listed[list_turn];
        for (uint32_t i = threadIdx.x; i < n; i += kRowThreads) {
          shared->list[at + i] = of(r)->list[i];
        }
        at += n;
      }
    }
    list_turn ^= 1;
    return static_cast<int32_t>(all);
  }

  // Bitonic, the greatest first. A warp works within 64 numbers while steps are at most 32.
  __device__ void sort_list(int32_t count) {
    uint32_t size = 64;
    while (size < static_cast<uint32_t>(count)) size *= 2;
    __syncthreads();
    for (uint32_t i = static_cast<uint32_t>(count) + threadIdx.x; i < size; i += kRowThreads) {
      shared->list[i] = 0;
    }
    __syncthreads();
    for (uint32_t run = 2; run <= size; run *= 2) {
      for (uint32_t step = run / 2; step > 0; step /= 2) {
        for (uint32_t pair = threadIdx.x; pair < size / 2; pair += kRowThreads) {
          const uint32_t i = 2 * pair - (pair & (step - 1)), j = i + step;
          const Sum a = shared->list[i], b = shared->list[j];
          if ((a < b) == ((i & run) == 0)) {
            shared->list[i] = b;
            shared->list[j] = a;
          }
        }
        const uint32_t next = step > 1 ? step / 2 : run;
        if (step > 32 || next > 32) {
          __syncthreads();
        } else {
          __syncwarp();
        }
      }
    }
    __syncthreads();
  }
  __device__ Sum listed(int32_t i) const { return shared->list[i]; }

  // The token, in ascending order, up to and including which the weights sum to more than
  // target(their sum over the row); the sum is not 0. A warp walks tokens of its own range.
  template <class Weight, class Target>
  __device__ int32_t draw_in_order(Weight weight, Target target_of_all) {
    const int32_t share = (count + kRowThreads - 1) / kRowThreads * 32;
    const int32_t first = min(count, warp() * share), end = min(count, first + share);
    Sum mine = 0;
    for (int32_t i = first + lane(); i < end; i += 32) mine += weight(logits[i]);
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0u, mine, offset);
    if (lane() == 0) shared->warp[warp()][0] = mine;
    __syncthreads();
    Sum before = 0, own = 0, all = 0;
    for (int w = 0; w < kRowWarps; ++w) {
      if (w < warp()) before += shared->warp[w][0];
      own += shared->warp[w][0];
    }
    if (threadIdx.x == 0) shared->block[turn][0] = own;
    cluster().sync();
    for (unsigned r = 0; r < kRowCluster; ++r) {
      const Sum other = of(r)->block[turn][0];
      if (r < rank()) before += other;
      all += other;
    }
    turn ^= 1;
    const Sum target = target_of_all(all);
    if (before <= target && target < before + mine) {
      for (int32_t i = first;; i += 32) {
        Sum scan = i + lane() < end ? weight(logits[i + lane()]) : 0;
        for (int offset = 1; offset < 32; offset *= 2) {
          const Sum other = __shfl_up_sync(~0u, scan, offset);
          if (lane() >= offset) scan += other;
        }
        const unsigned hit = __ballot_sync(~0u, before + scan > target);
        if (hit != 0) {
          const int32_t token = begin + i + __ffs(static_cast<int>(hit)) - 1;
          if (lane() == 0) {
            cluster().map_shared_rank(shared, 0)->told[turn].ranked = static_cast<Sum>(token);
          }
          break;
        }
        before += __shfl_sync(~0u, scan, 31);
      }
    }
    cluster().sync();
    const auto token = static_cast<int32_t>(of(0)->told[turn].ranked);
    turn ^= 1;
    return token;
  }
};

}  // namespace refrain::kernels
