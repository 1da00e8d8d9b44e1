// LoRA's two products on tensor cores, bfloat16, for many rows. A block multiplies a few rows of a
// window that take the same adapter, wherever they stand in it, and finds them itself. A row gets
// the same bits whatever stands beside it: its sums are its own, in an order that depends on the
// linear's shape alone.

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {
namespace {

constexpr int kTileRows = 16;  // of an mma, and of an item
constexpr int kWindow = 1024;  // rows that are looked through together
constexpr int kShrinkOutputs = 16;
constexpr int kShrinkWarps = 8, kShrinkBlocks = 8;  // of a block, and of a cluster
constexpr int kShrinkParts = kShrinkWarps * kShrinkBlocks;
constexpr int kChunk = 32;  // columns of two mma: a lane reads eight
constexpr int kExpandWarps = 4;
constexpr int kWarpCols = 32;
constexpr int kExpandCols = kExpandWarps * kWarpCols;
constexpr int kExpandTurns = 8, kManyRows = 512;
constexpr int kDepth = 16;                  // of an mma: ranks
constexpr int kColBytes = kDepth * 2 + 16;  // an odd number of 16-byte units

// The most that a window has, whatever its rows take.
__host__ __device__ constexpr int32_t items_of_window(int32_t padded, int32_t places) {
  const int32_t window = padded < kWindow ? padded : kWindow;
  return (window + kTileRows - 1) / kTileRows + (places < window ? places : window);
}

// Up to kTileRows rows of a window that take the same adapter.
struct Item {
  int32_t place = -1, count = 0;  // no rows: the window has fewer items
};

// `index` is window * items of a window + which of them; by all threads, its rows are in `list`.
// lora_rows has ended before this starts (P-7), so it comes before the wait.
template <int kThreads>
__device__ inline Item take_item(int32_t index, const int32_t* adapter, const Rows& all,
                                 int32_t places, int32_t (&list)[kTileRows]) {
  constexpr int kOwn = kWindow / kThreads;  // rows of a thread, side by side
  __shared__ int32_t counts[kMaxLoraPlaces], before[kThreads / 32];
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int32_t of_window = items_of_window(all.padded, places);
  const int32_t begin = index / of_window * kWindow + thread * kOwn;
  int32_t left = index % of_window;
  const int32_t live = live_rows(all);
  int32_t own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = begin + i < live ? adapter[begin + i] : -1;
  if (thread < kMaxLoraPlaces) counts[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0, same = 1; i < kOwn; ++i, ++same) {
    if (i + 1 < kOwn && own[i + 1] == own[i]) continue;
    if (own[i] >= 0) atomicAdd(&counts[own[i]], same);
    same = 0;
  }
  __syncthreads();
  Item item;
  for (int32_t place = 0; place < places; ++place) {
    const int32_t items = (counts[place] + kTileRows - 1) / kTileRows;
    if (left < items) {
      item = {place, min(kTileRows, counts[place] - left * kTileRows)};
      break;
    }
    left -= items;
  }
  if (item.place < 0) return item;
  int32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) mine += own[i] == item.place ? 1 : 0;
  int32_t through = mine;  // of this warp, up to this lane
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += other;
  }
  if (lane == 31) before[warp] = through;
  __syncthreads();
  int32_t at = through - mine - left * kTileRows;
  for (int i = 0; i < warp; ++i) at += before[i];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (own[i] != item.place) continue;
    if (at >= 0 && at < kTileRows) list[at] = begin + i;
    ++at;
  }
  __syncthreads();
  return item;
}

__device__ inline uint4 load16(const void* data, int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(data) + at);
}

// A warp's part, every kShrinkParts-th chunk of the columns, of 16 outputs of up to 16 rows. Of a
// chunk's columns lane i reads eight from i % 4 * 8 on and gives them to two mma: which columns
// meet does not matter to a sum.
__device__ inline void shrink_rows(const LoraShrinkArgs& args, const int32_t* list, int count,
                                   int64_t line, int outputs, int part, float (&sum)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
  const auto* a = static_cast<const __nv_bfloat16*>(args.a);
  const int64_t top = list[min(row, count - 1)] * args.in.stride;
  const int64_t bottom = list[min(row + 8, count - 1)] * args.in.stride;
  int64_t lines[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) lines[n] = (line + min(n * 8 + row, outputs - 1)) * args.cols;
#pragma unroll 4
  for (int32_t chunk = part * kChunk; chunk < args.cols; chunk += kShrinkParts * kChunk) {
    const int32_t col = chunk + lane % 4 * 8;
    const bool valid = col < args.cols;
    const uint4 x = valid ? load16(args.in.data, top + col) : uint4{};
    const uint4 y = valid ? load16(args.in.data, bottom + col) : uint4{};
    const uint32_t first[4] = {x.x, y.x, x.y, y.y}, second[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4 of_a = valid ? load16(a, lines[n] + col) : uint4{};
      mma(sum[n], first, of_a.x, of_a.y);
      mma(sum[n], second, of_a.z, of_a.w);
    }
  }
}

// A cluster 16 outputs of a part, a block every kShrinkBlocks-th of the columns' shares: one
// multiprocessor alone would wait for what it reads.
__global__ void __launch_bounds__(kShrinkWarps * 32) shrink_mma_kernel(LoraShrinkArgs args) {
  __shared__ int32_t list[kTileRows];
  __shared__ float sums[kShrinkWarps][kTileRows][kShrinkOutputs],
      of_block[kTileRows][kShrinkOutputs];
  let_successor_start();
  const auto cluster = cooperative_groups::this_cluster();
  const auto block = static_cast<int>(cluster.block_rank());
  const LoraPlaces& places = args.places;
  const Item item = take_item<kShrinkWarps * 32>(static_cast<int32_t>(blockIdx.x) / kShrinkBlocks,
                                                 args.adapter, args.rows, places.count, list);
  const int32_t width = places.parts * places.max_rank;
  const int32_t blocks = (places.max_rank + kShrinkOutputs - 1) / kShrinkOutputs;
  const int32_t part = static_cast<int32_t>(blockIdx.y) / blocks;
  const int32_t begin = static_cast<int32_t>(blockIdx.y) % blocks * kShrinkOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t outputs =
      item.place < 0
          ? 0
          : min(kShrinkOutputs, places.ranks[item.place * places.rank_stride + part] - begin);
  wait_for_predecessor();
  if (outputs <= 0) return;  // all blocks of the cluster
  const int64_t line = int64_t{item.place} * width + part * places.max_rank + begin;
  float sum[2][4] = {};
  shrink_rows(args, list, item.count, line, outputs, block * kShrinkWarps + warp, sum);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][i / 2 * 8 + lane / 4][n * 8 + lane % 4 * 2 + i % 2] = sum[n][i];
  }
  __syncthreads();
  static_assert(kShrinkWarps * 32 == kTileRows * kShrinkOutputs);
  const auto thread = static_cast<int>(threadIdx.x);
  float whole = 0;
#pragma unroll
  for (auto& of_warp : sums) whole += of_warp[thread / kShrinkOutputs][thread % kShrinkOutputs];
  of_block[thread / kShrinkOutputs][thread % kShrinkOutputs] = whole;
  cluster.sync();
  constexpr int kShare = kTileRows * kShrinkOutputs / kShrinkBlocks;
  const int row = (block * kShare + thread) / kShrinkOutputs, o = thread % kShrinkOutputs;
  if (thread < kShare && row < item.count && o < outputs) {
    whole = 0;
#pragma unroll
    for (int of = 0; of < kShrinkBlocks; ++of)
      whole += *cluster.map_shared_rank(&of_block[row][o], of);
    args.out[int64_t{list[row]} * width + part * places.max_rank + begin + o] = whole;
  }
  cluster.sync();  // nobody reads this block's shared memory any more
}

// Adds what an adapter gives the block's columns of the rows. A lane's columns of four mma
// lie side by side, eight of them, so that it reads and writes 16 bytes: column c of the warp is
// column c / 8 * 2 + c % 2 of mma c % 8 / 2, and b's columns are laid out so in shared memory.
__device__ inline void expand_rows(const LoraExpandArgs& args, const int32_t* list, int count,
                                   const __nv_bfloat16* b, int32_t rank, int64_t first_in,
                                   int64_t first_out, int64_t n, unsigned char* of_b) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t width = int64_t{args.places.parts} * args.places.max_rank;
  const int64_t b_stride = int64_t{args.places.count} * args.places.max_rank;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(of_b));
  const int64_t col = warp * kWarpCols + lane % 4 * 8;
  auto* const to = static_cast<__nv_bfloat16*>(args.out.data) + first_out + col;
  int64_t row[2];
  uint4 out[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row[half] = list[min(half * 8 + lane / 4, count - 1)];
    out[half] =
        col < n ? *reinterpret_cast<const uint4*>(to + row[half] * args.out.stride) : uint4{};
  }
  float sum[kWarpCols / 8][4] = {};
  for (int32_t j = 0; j < rank; j += kDepth) {
#pragma unroll
    for (int i = 0; i < kExpandCols * kDepth / 8 / (kExpandWarps * 32); ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * kExpandWarps * 32;
      const int c = e / (kDepth / 8), eight = e % (kDepth / 8) * 8;
      const bool valid = j + eight < rank && c < n;
      const int in_warp = c % 8 / 2 * 8 + c % kWarpCols / 8 * 2 + c % 2;
      *reinterpret_cast<uint4*>(of_b + (c / kWarpCols * kWarpCols + in_warp) * kColBytes +
                                eight * 2) = valid ? load16(b, c * b_stride + j + eight) : uint4{};
    }
    uint32_t high[4], low[4];  // bfloat16, and what it leaves of the float
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t at = j + i / 2 * 8 + lane % 4 * 2;
      const float* in = args.in + row[i % 2] * width + first_in + at;
      const float x = at < rank ? in[0] : 0.0f, y = at + 1 < rank ? in[1] : 0.0f;
      high[i] = pack_halves(x, y);
      low[i] = pack_halves(x - low_half(high[i]), y - high_half(high[i]));
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kWarpCols / 8; d += 2) {
      uint32_t r[4];  // of an mma: ranks 0-7, 8-15; of the next: the same
      load_matrices<false>(
          r, shared + static_cast<uint32_t>((warp * kWarpCols + d * 8 + lane / 16 * 8 + lane % 8) *
                                                kColBytes +
                                            lane / 8 % 2 * 16));
      mma(sum[d], high, r[0], r[1]);
      mma(sum[d], low, r[0], r[1]);
      mma(sum[d + 1], high, r[2], r[3]);
      mma(sum[d + 1], low, r[2], r[3]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 + lane / 4 >= count || col >= n) continue;
    float x[8];
    unpack8(out[half], x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += sum[i / 2][half * 2 + i % 2];
    *reinterpret_cast<uint4*>(to + row[half] * args.out.stride) = pack8(x);
  }
}

// A block kTurns times 128 columns of a part, one after the other.
template <int kTurns>
__global__ void __launch_bounds__(kExpandWarps * 32) expand_mma_kernel(LoraExpandArgs args) {
  __shared__ int32_t list[kTileRows];
  __shared__ __align__(16) unsigned char of_b[kExpandCols * kColBytes];
  let_successor_start();
  const LoraPlaces& places = args.places;
  const Item item = take_item<kExpandWarps * 32>(static_cast<int32_t>(blockIdx.x), args.adapter,
                                                 args.rows, places.count, list);
  const auto part = static_cast<int32_t>(blockIdx.z);
  const int64_t begin = part == 0 ? 0 : args.part_end[part - 1];
  const int64_t part_cols = args.part_end[part] - begin;
  const int32_t rank = item.place < 0 ? 0 : places.ranks[item.place * places.rank_stride + part];
  wait_for_predecessor();
  if (rank == 0) return;
  const int64_t first_in = int64_t{part} * places.max_rank;
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t col = (int64_t{blockIdx.y} * kTurns + turn) * kExpandCols, n = part_cols - col;
    if (n <= 0) return;
    const auto* b = static_cast<const __nv_bfloat16*>(args.b) +
                    ((begin + col) * places.count + item.place) * places.max_rank;
    expand_rows(args, list, item.count, b, rank, first_in, begin + col, n, of_b);
  }
}

unsigned items_of(const Rows& rows, int32_t places) {
  return static_cast<unsigned>(ceil_div(rows.padded, kWindow) *
                               items_of_window(rows.padded, places));
}

}  // namespace

void lora_shrink_mma(StreamRef stream, const LoraShrinkArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(
      items_of(args.rows, args.places.count) * kShrinkBlocks,
      static_cast<unsigned>(args.places.parts * ceil_div(args.places.max_rank, kShrinkOutputs)));
  shape.threads = kShrinkWarps * 32;
  shape.cluster = kShrinkBlocks;
  launch<&shrink_mma_kernel>(stream, "lora_shrink", shape, args);
}

void lora_expand_mma(StreamRef stream, const LoraExpandArgs& args) {
  int32_t widest = 0, begin = 0;
  for (int part = 0; part < args.places.parts; ++part) {
    widest = std::max(widest, args.part_end[part] - begin);
    begin = args.part_end[part];
  }
  // Of many rows a block's search for its own costs more than a launch of fewer blocks.
  const int turns = args.rows.padded > kManyRows ? kExpandTurns : 1;
  LaunchShape shape;
  shape.grid = dim3(items_of(args.rows, args.places.count),
                    static_cast<unsigned>(ceil_div(widest, turns * kExpandCols)),
                    static_cast<unsigned>(args.places.parts));
  shape.threads = kExpandWarps * 32;
  if (turns == 1) return launch<&expand_mma_kernel<1>>(stream, "lora_expand", shape, args);
  launch<&expand_mma_kernel<kExpandTurns>>(stream, "lora_expand", shape, args);
}

}  // namespace refrain::kernels
