// LoRA's two products on tensor cores, bfloat16, for many rows. A block multiplies a group of rows
// that take the same adapter, wherever they stand. A row gets the same bits whatever stands beside
// it: its sums are its own, in an order that depends on the linear's shape alone. lora_rows has
// ended before either starts (P-7), so that its groups are read before the wait.

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_core.cuh"

namespace refrain::kernels {
namespace {

constexpr int kTileRows = 16;  // of an mma
static_assert(kTileRows == LoraGroup::kRows);
constexpr int kShrinkOutputs = 16;
constexpr int kShrinkWarps = 8, kShrinkBlocks = 8;  // of a block, and of a cluster
constexpr int kShrinkParts = kShrinkWarps * kShrinkBlocks;
constexpr int kChunk = 32;  // columns of two mma: a lane reads eight
constexpr int kExpandWarps = 8;
constexpr int kWarpCols = 32;
constexpr int kExpandCols = kExpandWarps * kWarpCols;
constexpr int kDepth = 16;  // of an mma: ranks

// The most groups that rows can have, whatever they take.
unsigned groups_of(const Rows& rows, int32_t places) {
  return static_cast<unsigned>(ceil_div(rows.padded, kTileRows) + std::min(places, rows.padded));
}

// A warp's rows of the index-th group: row + 8 * i of lane's, row = lane / 4. What it reads, it
// reads at one time, places of rows that are not there too.
struct Group {
  int32_t place, count;  // 0: there is no such group
  int32_t rows[2];

  __device__ Group(const LoraGroup* groups, uint32_t index) {
    const LoraGroup& group = groups[1 + index];
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    const int32_t all = groups->count, here = group.count, of = group.place;
    const int32_t first = group.rows[0], top = group.rows[row], bottom = group.rows[row + 8];
    count = static_cast<int32_t>(index) < all ? here : 0;
    place = count > 0 ? of : 0;
    rows[0] = row < count ? top : first;
    rows[1] = row + 8 < count ? bottom : first;
  }
};

__device__ inline uint4 load16(const void* data, int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(data) + at);
}

// A warp's part, every kShrinkParts-th chunk of the columns, of 16 outputs of up to 16 rows. Of a
// chunk's columns lane i reads eight from i % 4 * 8 on and gives them to two mma: which columns
// meet does not matter to a sum.
__device__ inline void shrink_rows(const LoraShrinkArgs& args, const Group& group, int64_t line,
                                   int outputs, int part, float (&sum)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
  const auto* a = static_cast<const __nv_bfloat16*>(args.a);
  const int64_t top = group.rows[0] * args.in.stride;
  const int64_t bottom = group.rows[1] * args.in.stride;
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
  __shared__ float sums[kShrinkWarps][kTileRows][kShrinkOutputs],
      of_block[kTileRows][kShrinkOutputs];
  let_successor_start();
  const auto cluster = cooperative_groups::this_cluster();
  const auto block = static_cast<int>(cluster.block_rank());
  const LoraPlaces& places = args.places;
  const Group group(args.groups, blockIdx.x / kShrinkBlocks);
  const int32_t width = places.parts * places.max_rank;
  const int32_t blocks = (places.max_rank + kShrinkOutputs - 1) / kShrinkOutputs;
  const int32_t part = static_cast<int32_t>(blockIdx.y) / blocks;
  const int32_t begin = static_cast<int32_t>(blockIdx.y) % blocks * kShrinkOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t rank = places.ranks[group.place * places.rank_stride + part];
  const int32_t outputs = group.count == 0 ? 0 : min(kShrinkOutputs, rank - begin);
  wait_for_predecessor();
  if (outputs <= 0) return;  // all blocks of the cluster
  const int64_t line = int64_t{group.place} * width + part * places.max_rank + begin;
  float sum[2][4] = {};
  shrink_rows(args, group, line, outputs, block * kShrinkWarps + warp, sum);
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
  if (thread < kShare && row < group.count && o < outputs) {
    whole = 0;
#pragma unroll
    for (int of = 0; of < kShrinkBlocks; ++of)
      whole += *cluster.map_shared_rank(&of_block[row][o], of);
    args.out[int64_t{args.groups[1 + blockIdx.x / kShrinkBlocks].rows[row]} * width +
             part * places.max_rank + begin + o] = whole;
  }
  cluster.sync();  // nobody reads this block's shared memory any more
}

// Four ranks of each of a warp's columns that a lane gives to the mma, from `from` on. Of mma d it
// has column n = lane / 4, which is the warp's n / 2 * 8 + d * 2 + n % 2, and ranks lane % 4 * 4 to
// + 3 in place of the two pairs that an mma counts as its: which ranks meet does not matter to a
// sum. Those beyond the adapter's rank are multiplied by zeros.
struct OfB {
  uint2 ranks[kWarpCols / 8];

  __device__ void load(const __nv_bfloat16* b, int64_t b_stride, int32_t max_rank, int32_t from,
                       int64_t n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t at = from + lane % 4 * 4;
#pragma unroll
    for (int d = 0; d < kWarpCols / 8; ++d) {
      const int64_t c = lane / 8 * 8 + d * 2 + lane / 4 % 2;
      ranks[d] =
          at < max_rank && c < n ? *reinterpret_cast<const uint2*>(b + c * b_stride + at) : uint2{};
    }
  }
};

// A warp kWarpCols columns of a part. Column c is column c / 8 * 2 + c % 2 of mma c % 8 / 2, so
// that a lane's results of four mma lie side by side.
__global__ void __launch_bounds__(kExpandWarps * 32)
    expand_mma_kernel(const __grid_constant__ LoraExpandArgs args) {
  let_successor_start();
  const LoraPlaces& places = args.places;
  const Group group(args.groups, blockIdx.x);
  const auto part = static_cast<int32_t>(blockIdx.z);
  const int64_t begin = part == 0 ? 0 : args.part_end[part - 1];
  const int64_t first = int64_t{blockIdx.y} * kExpandCols + threadIdx.x / 32 * kWarpCols;
  const int64_t n = args.part_end[part] - begin - first;  // columns that are left
  const int64_t b_stride = int64_t{places.count} * places.max_rank;
  const auto* b = static_cast<const __nv_bfloat16*>(args.b) + (begin + first) * b_stride +
                  int64_t{group.place} * places.max_rank;
  OfB of_b;
  if (group.count > 0) of_b.load(b, b_stride, places.max_rank, 0, n);
  const int32_t rank = places.ranks[group.place * places.rank_stride + part];
  wait_for_predecessor();
  if (group.count == 0 || rank == 0 || n <= 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t width = int64_t{places.parts} * places.max_rank, col = lane % 4 * 8;
  const float* const in = args.in + int64_t{part} * places.max_rank;
  auto* const to = static_cast<__nv_bfloat16*>(args.out.data) + begin + first + col;
  int64_t row[2];
  uint4 out[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row[half] = group.rows[half];
    out[half] =
        col < n ? *reinterpret_cast<const uint4*>(to + row[half] * args.out.stride) : uint4{};
  }
  float sum[kWarpCols / 8][4] = {};
#pragma unroll 1
  for (int32_t j = 0; j < rank; j += kDepth) {
    if (j > 0) of_b.load(b, b_stride, places.max_rank, j, n);
    const int32_t at = j + lane % 4 * 4;
    uint32_t high[4], low[4];  // bfloat16, and what it leaves of the float
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 v =
          at < rank ? *reinterpret_cast<const float4*>(in + row[half] * width + at) : float4{};
      const float x[4] = {v.x, at + 1 < rank ? v.y : 0, at + 2 < rank ? v.z : 0,
                          at + 3 < rank ? v.w : 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t& of_high = high[i * 2 + half];
        of_high = pack_halves(x[i * 2], x[i * 2 + 1]);
        low[i * 2 + half] =
            pack_halves(x[i * 2] - low_half(of_high), x[i * 2 + 1] - high_half(of_high));
      }
    }
#pragma unroll
    for (int d = 0; d < kWarpCols / 8; ++d) {
      mma(sum[d], high, of_b.ranks[d].x, of_b.ranks[d].y);
      mma(sum[d], low, of_b.ranks[d].x, of_b.ranks[d].y);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 + lane / 4 >= group.count || col >= n) continue;
    float x[8];
    unpack8(out[half], x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += sum[i / 2][half * 2 + i % 2];
    *reinterpret_cast<uint4*>(to + row[half] * args.out.stride) = pack8(x);
  }
}

}  // namespace

void lora_shrink_mma(StreamRef stream, const LoraShrinkArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(
      groups_of(args.rows, args.places.count) * kShrinkBlocks,
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
  LaunchShape shape;
  shape.grid = dim3(groups_of(args.rows, args.places.count),
                    static_cast<unsigned>(ceil_div(widest, kExpandCols)),
                    static_cast<unsigned>(args.places.parts));
  shape.threads = kExpandWarps * 32;
  launch<&expand_mma_kernel>(stream, "lora_expand", shape, args);
}

}  // namespace refrain::kernels
