// lora_rows: which adapter each row takes, and the groups of rows that lora_mma.cu multiplies.

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kLeastThreads = 128, kMostThreads = 1024;

// The row whose tokens begin at or before `token`.
__device__ int32_t row_of(const int32_t* query_start, int32_t reqs, int32_t token) {
  int32_t low = 0, high = reqs;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (query_start[middle] <= token ? low : high) = middle;
  }
  return low;
}

// The groups of `rows` rows, of which `adapter` says the place. All threads. A round is a row for
// each of them; what a place has of each warp and of the rounds before says where a row goes.
__device__ void make_groups(const int32_t* adapter, int32_t rows, LoraGroup* groups) {
  constexpr int kMostWarps = kMostThreads / 32;
  __shared__ int32_t counts[kMaxLoraPlaces], first[kMaxLoraPlaces], so_far[kMaxLoraPlaces];
  __shared__ int32_t of_warp[kMostWarps][kMaxLoraPlaces];
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t warp = thread / 32, lane = thread % 32;
  const auto place_of = [&](int32_t row) { return row < rows ? adapter[row] : -1; };
  const auto is_first = [lane](uint32_t peers) {
    return lane == __ffs(static_cast<int>(peers)) - 1;
  };
  if (thread < kMaxLoraPlaces) counts[thread] = so_far[thread] = 0;
  __syncthreads();
  for (int32_t round = 0; round < rows; round += threads) {
    const int32_t place = place_of(round + thread);
    const uint32_t peers = __match_any_sync(~0u, place);
    if (place >= 0 && is_first(peers)) atomicAdd(&counts[place], __popc(peers));
  }
  __syncthreads();
  if (thread < kMaxLoraPlaces) {
    int32_t begin = 1;
    for (int32_t place = 0; place < thread; ++place)
      begin += (counts[place] + LoraGroup::kRows - 1) / LoraGroup::kRows;
    first[thread] = begin;
    int32_t left = counts[thread];
    for (; left > 0; left -= LoraGroup::kRows, ++begin) {
      groups[begin].place = thread;
      groups[begin].count = min(LoraGroup::kRows, left);
    }
    if (thread == kMaxLoraPlaces - 1) groups[0].count = begin - 1;
  }
  for (int32_t round = 0; round < rows; round += threads) {
    const int32_t place = place_of(round + thread);
    const uint32_t peers = __match_any_sync(~0u, place);
    __syncwarp();  // all have read what the round before left there
    of_warp[warp][lane] = of_warp[warp][lane + 32] = 0;
    __syncwarp();
    if (place >= 0 && is_first(peers)) of_warp[warp][place] = __popc(peers);
    __syncthreads();
    if (thread < kMaxLoraPlaces) {
      int32_t before = so_far[thread];
      for (int32_t w = 0; w < threads / 32; ++w) {
        const int32_t here = of_warp[w][thread];
        of_warp[w][thread] = before;
        before += here;
      }
      so_far[thread] = before;
    }
    __syncthreads();
    if (place < 0) continue;
    const int32_t at = of_warp[warp][place] + __popc(peers & ((1u << lane) - 1));
    groups[first[place] + at / LoraGroup::kRows].rows[at % LoraGroup::kRows] = round + thread;
  }
}

// A block the tokens, a block the rows of logits. Whoever comes after it may read what it writes
// without a wait: its successor starts when it has ended.
__global__ void __launch_bounds__(kMostThreads)
    rows_kernel(const __grid_constant__ LoraRowsArgs args) {
  wait_for_predecessor();
  const bool tokens = blockIdx.x == 0;
  const Rows& rows = tokens ? args.tokens : args.samples;
  int32_t* const adapter = tokens ? args.of_tokens : args.of_samples;
  LoraGroup* const groups = tokens ? args.token_groups : args.sample_groups;
  const int32_t reqs = live_rows(args.reqs), live = tokens && reqs == 0 ? 0 : live_rows(rows);
  for (auto at = static_cast<int32_t>(threadIdx.x); at < rows.padded;
       at += static_cast<int32_t>(blockDim.x)) {
    adapter[at] = -1;
    if (at >= live) continue;
    const int32_t slot =
        tokens ? args.row_slot[row_of(args.query_start, reqs, at)] : args.sample_slot[at];
    adapter[at] = args.params[slot].adapter;
  }
  if (rows.padded > kLoraFewRows) return make_groups(adapter, rows.padded, groups);
  if (threadIdx.x == 0) groups[0].count = 0;
}

}  // namespace

void lora_rows(StreamRef stream, const LoraRowsArgs& args) {
  LaunchShape shape;
  const int32_t most = std::max(args.tokens.padded, args.samples.padded);
  shape.grid = dim3(2);
  const auto threads = static_cast<int32_t>(ceil_div(most, kLeastThreads)) * kLeastThreads;
  shape.threads = std::min(threads, kMostThreads);
  launch<&rows_kernel>(stream, "lora_rows", shape, args);
}

}  // namespace refrain::kernels
