// LoRA's two products on tensor cores, bfloat16, for many rows. Of a window of rows those that take
// the same adapter are one product, found by the blocks themselves. A row gets the same bits
// whatever stands beside it: its sums are its own, in an order that depends on the linear's shape
// alone.

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {
namespace {

constexpr int kTileRows = 16;                          // of an mma
constexpr int kShrinkWindow = 16, kExpandWindow = 64;  // rows that are looked through together
constexpr int kShrinkWarps = 8;                        // each has every eighth chunk of the columns
constexpr int kShrinkOutputs = 16;
constexpr int kChunk = 32;  // columns of two mma: a lane reads eight
constexpr int kExpandWarps = 4;
constexpr int kWarpCols = 32;
constexpr int kExpandCols = kExpandWarps * kWarpCols;
constexpr int kDepth = 16;                  // of an mma: ranks
constexpr int kColBytes = kDepth * 2 + 16;  // an odd number of 16-byte units
constexpr int kExpandTiles = kExpandWindow / kTileRows;
constexpr int kSharers = 2;  // blocks that share a window's adapters

// blockIdx.y is window * kSharers + which of them. f(place, rows, count) for each of this block's
// adapters, by all threads: the rows are in shared memory, which f may read until it returns.
template <int kWindow, class F>
__device__ inline void for_each_adapter(const int32_t* adapter, const Rows& all,
                                        int32_t (&list)[kWindow], F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t live = live_rows(all);
  const auto windows = static_cast<int32_t>(gridDim.y) / kSharers;
  const int mine = static_cast<int>(blockIdx.y) % kSharers;
  for (int32_t begin = static_cast<int32_t>(blockIdx.y) / kSharers * kWindow; begin < live;
       begin += windows * kWindow) {
    const int32_t low = begin + lane, high = low + 32;
    const int32_t of_low = lane < kWindow && low < live ? adapter[low] : -1;
    const int32_t of_high = kWindow > 32 && high < live ? adapter[high] : -1;
    const auto where = [&](auto holds) {
      return __ballot_sync(~0u, holds(of_low)) |
             static_cast<uint64_t>(__ballot_sync(~0u, holds(of_high))) << 32;
    };
    uint64_t left = where([](int32_t place) { return place >= 0; });
    for (int turn = 0; left != 0; ++turn) {
      const int first = __ffsll(static_cast<long long>(left)) - 1;
      const int32_t place = __shfl_sync(~0u, first < 32 ? of_low : of_high, first % 32);
      const uint64_t rows = where([place](int32_t other) { return other == place; });
      left &= ~rows;
      if (turn % kSharers != mine) continue;
      __syncthreads();  // the list before is read
      const auto at = static_cast<int>(threadIdx.x);
      if (at < kWindow && (rows >> at & 1) != 0)
        list[__popcll(rows & ((uint64_t{1} << at) - 1))] = begin + at;
      __syncthreads();
      f(place, __popcll(rows));
    }
  }
}

__device__ inline uint4 load16(const void* data, int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(data) + at);
}

// The warp's part of 16 outputs of up to 16 rows. Of a chunk's columns lane i reads eight from
// i % 4 * 8 on and gives them to two mma: which columns meet does not matter to a sum.
__device__ inline void shrink_rows(const LoraShrinkArgs& args, const int32_t* list, int count,
                                   int64_t line, int outputs, int warp, float (&sum)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
  const auto* a = static_cast<const __nv_bfloat16*>(args.a);
  const int64_t top = list[min(row, count - 1)] * args.in.stride;
  const int64_t bottom = list[min(row + 8, count - 1)] * args.in.stride;
  int64_t lines[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) lines[n] = (line + min(n * 8 + row, outputs - 1)) * args.cols;
#pragma unroll 4
  for (int32_t chunk = warp * kChunk; chunk < args.cols; chunk += kShrinkWarps * kChunk) {
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

// A block 16 outputs of a part.
__global__ void __launch_bounds__(kShrinkWarps * 32) shrink_mma_kernel(LoraShrinkArgs args) {
  __shared__ int32_t list[kShrinkWindow];
  __shared__ float sums[kShrinkWarps][kTileRows][kShrinkOutputs];
  let_successor_start();
  wait_for_predecessor();
  const LoraPlaces& places = args.places;
  const int32_t width = places.parts * places.max_rank;
  const int32_t blocks = (places.max_rank + kShrinkOutputs - 1) / kShrinkOutputs;
  const int32_t part = static_cast<int32_t>(blockIdx.x) / blocks;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) % blocks * kShrinkOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for_each_adapter(args.adapter, args.rows, list, [&](int32_t place, int count) {
    const int32_t outputs =
        min(kShrinkOutputs, places.ranks[place * places.rank_stride + part] - begin);
    if (outputs <= 0) return;
    const int64_t line = int64_t{place} * width + part * places.max_rank + begin;
    float sum[2][4] = {};
    shrink_rows(args, list, count, line, outputs, warp, sum);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[warp][i / 2 * 8 + lane / 4][n * 8 + lane % 4 * 2 + i % 2] = sum[n][i];
    }
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / kShrinkOutputs;
    const int o = static_cast<int>(threadIdx.x) % kShrinkOutputs;
    static_assert(kShrinkWarps * 32 == kTileRows * kShrinkOutputs);
    if (row < count && o < outputs) {
      float whole = 0;
#pragma unroll
      for (auto& of_warp : sums) whole += of_warp[row][o];
      args.out[int64_t{list[row]} * width + part * places.max_rank + begin + o] = whole;
    }
    __syncthreads();
  });
}

// Adds what an adapter gives the block's columns of kTiles * 16 rows. A lane's columns of four mma
// lie side by side, eight of them, so that it reads and writes 16 bytes: column c of the warp is
// column c / 8 * 2 + c % 2 of mma c % 8 / 2, and b's columns are laid out so in shared memory.
template <int kTiles>
__device__ inline void expand_rows(const LoraExpandArgs& args, const int32_t* list, int count,
                                   const __nv_bfloat16* b, int32_t rank, int64_t first_in,
                                   int64_t first_out, int64_t n, unsigned char* of_b) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t width = int64_t{args.places.parts} * args.places.max_rank;
  const int64_t b_stride = int64_t{args.places.count} * args.places.max_rank;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(of_b));
  const int64_t col = warp * kWarpCols + lane % 4 * 8;
  auto* const to = static_cast<__nv_bfloat16*>(args.out.data) + first_out + col;
  int64_t row[kTiles][2];
  uint4 out[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[tile][half] = list[min(tile * kTileRows + half * 8 + lane / 4, count - 1)];
      out[tile][half] =
          col < n ? *reinterpret_cast<const uint4*>(to + row[tile][half] * args.out.stride)
                  : uint4{};
    }
  }
  float sum[kTiles][kWarpCols / 8][4] = {};
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
    uint32_t high[kTiles][4], low[kTiles][4];  // bfloat16, and what it leaves of the float
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = j + i / 2 * 8 + lane % 4 * 2;
        const float* in = args.in + row[tile][i % 2] * width + first_in + at;
        const float x = at < rank ? in[0] : 0.0f, y = at + 1 < rank ? in[1] : 0.0f;
        high[tile][i] = pack_halves(x, y);
        low[tile][i] = pack_halves(x - low_half(high[tile][i]), y - high_half(high[tile][i]));
      }
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kWarpCols / 8; d += 2) {
      uint32_t r[4];  // of an mma: ranks 0-7, 8-15; of the next: the same
      load_matrices<false>(
          r, shared + static_cast<uint32_t>((warp * kWarpCols + d * 8 + lane / 16 * 8 + lane % 8) *
                                                kColBytes +
                                            lane / 8 % 2 * 16));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        mma(sum[tile][d], high[tile], r[0], r[1]);
        mma(sum[tile][d], low[tile], r[0], r[1]);
        mma(sum[tile][d + 1], high[tile], r[2], r[3]);
        mma(sum[tile][d + 1], low[tile], r[2], r[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tile * kTileRows + half * 8 + lane / 4 >= count || col >= n) continue;
      float x[8];
      unpack8(out[tile][half], x);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += sum[tile][i / 2][half * 2 + i % 2];
      *reinterpret_cast<uint4*>(to + row[tile][half] * args.out.stride) = pack8(x);
    }
  }
}

// A block 128 columns of a part.
__global__ void __launch_bounds__(kExpandWarps * 32) expand_mma_kernel(LoraExpandArgs args) {
  __shared__ int32_t list[kExpandWindow];
  __shared__ __align__(16) unsigned char of_b[kExpandCols * kColBytes];
  let_successor_start();
  wait_for_predecessor();
  const LoraPlaces& places = args.places;
  const auto part = static_cast<int32_t>(blockIdx.z);
  const int64_t begin = part == 0 ? 0 : args.part_end[part - 1];
  const int64_t part_cols = args.part_end[part] - begin;
  const int64_t col = int64_t{blockIdx.x} * kExpandCols, n = part_cols - col;
  if (n <= 0) return;
  for_each_adapter(args.adapter, args.rows, list, [&](int32_t place, int count) {
    const int32_t rank = places.ranks[place * places.rank_stride + part];
    if (rank == 0) return;
    const auto* b = static_cast<const __nv_bfloat16*>(args.b) +
                    ((begin + col) * places.count + place) * places.max_rank;
    const int64_t first_in = int64_t{part} * places.max_rank;
    if (count <= kTileRows) {
      expand_rows<1>(args, list, count, b, rank, first_in, begin + col, n, of_b);
    } else {
      expand_rows<kExpandTiles>(args, list, count, b, rank, first_in, begin + col, n, of_b);
    }
  });
}

unsigned windows_of(const Rows& rows, int window) {
  return grid_y(std::min<int64_t>(ceil_div(rows.padded, window), 65535 / kSharers) * kSharers);
}

}  // namespace

void lora_shrink_mma(StreamRef stream, const LoraShrinkArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(
      static_cast<unsigned>(args.places.parts * ceil_div(args.places.max_rank, kShrinkOutputs)),
      windows_of(args.rows, kShrinkWindow));
  shape.threads = kShrinkWarps * 32;
  launch<&shrink_mma_kernel>(stream, "lora_shrink", shape, args);
}

void lora_expand_mma(StreamRef stream, const LoraExpandArgs& args) {
  int32_t widest = 0, begin = 0;
  for (int part = 0; part < args.places.parts; ++part) {
    widest = std::max(widest, args.part_end[part] - begin);
    begin = args.part_end[part];
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(widest, kExpandCols)),
                    windows_of(args.rows, kExpandWindow), static_cast<unsigned>(args.places.parts));
  shape.threads = kExpandWarps * 32;
  launch<&expand_mma_kernel>(stream, "lora_expand", shape, args);
}

}  // namespace refrain::kernels
