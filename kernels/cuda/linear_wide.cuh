#pragma once
// The tiles of linears of up to 256 rows, bfloat16, that read the weights once: linear_silu.cu and
// linear_best.cu, which say what becomes of a tile's sums. A tile is 128 rows of the input, or as
// many as there are, times kCols rows of the weight: rows of a box that lie outside of the matrix
// are not free (lm_head of 8B takes 355 us of one row in a box of 128, 250 in a box of eight). Of
// more than 128 rows two blocks of a cluster have the two halves; each draws every second stage of
// the weights for both.
//
// A block has a warp that draws weights and input through the copy engine and eight that multiply
// and store, while the first goes on with the next tile. The ring is filled with weights before the
// wait for the previous kernel. L2 asks for 256 bytes of a row at once: with 128 the memory opens a
// page for each of them (H100, 8B's gate_up of 128 rows: 89 us, with 256 bytes 84). The kernels
// whose warps read neighbouring pieces of a row at one time are slower so: 7 % on an H200.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace refrain::kernels::wide {

constexpr int kTileRows = 128;        // of the input
constexpr int kRowBytes = kAtom * 2;  // of a row of the input, in a stage
constexpr int kInputBytes = kTileRows * kRowBytes;
constexpr int kMultiplyWarps = 8, kGroupWarps = 4;
constexpr int kThreads = (kMultiplyWarps + 1) * 32;
constexpr int kMaxStages = 8;
static_assert(kSiluRows == 2 * kTileRows);

// [rows, parts, 2] float32, of linear_best.
struct Best {
  float* found;
  int32_t parts;
  const int32_t* live_logits;
  int32_t first_token, num_tokens;
};

struct WideLinear {
  Matrix out;
  int64_t cols;    // of `out`
  int32_t chunks;  // of kAtom columns of K
  int32_t tiles;   // of the weight
  int32_t drawn;   // rows of the input that a block draws, a multiple of eight
  Rows rows;
  Best best;  // of linear_best
};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages];
};

// kCols: rows of the weight, of a tile. kPair: clusters of two blocks. Store: a lane's, made once
// for row 16 w + lane / 4 of the tile, of warp w; takes the sums of each tile, as Wgmma has them,
// and ends behind the last.
template <int kCols, bool kPair, class Store>
struct WideBlock {
  static constexpr int kStageBytes = kInputBytes + kCols * kAtom * 2;
  static constexpr int bytes(int stages) {
    return 1024 + stages * kStageBytes + static_cast<int>(sizeof(Barriers));
  }
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - bytes(0)) / kStageBytes);
  static constexpr int kBytes = bytes(kStages);
  static constexpr uint32_t kBlocks = kPair ? 2 : 1;
  static_assert(2 * kBytes > kMaxSharedBytes);  // one block a multiprocessor

  const WideLinear& args;
  uint32_t ring, full, empty, rank;
  int32_t tile, tile_step;

  __device__ WideBlock(const WideLinear& args, uint32_t shared)
      : args(args),
        ring((shared + 1023) / 1024 * 1024),
        full(ring + kStages * kStageBytes + offsetof(Barriers, full)),
        empty(ring + kStages * kStageBytes + offsetof(Barriers, empty)),
        rank(kPair ? block_of_cluster() : 0),
        tile(static_cast<int32_t>(blockIdx.x / kBlocks)),
        tile_step(static_cast<int32_t>(gridDim.x / kBlocks)) {}

  // Of few rows the second group has none.
  __device__ int multiply_warps() const {
    return args.drawn <= kTileRows / 2 ? kGroupWarps : kMultiplyWarps;
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void init_barriers() const {
    for (int s = 0; s < kStages; ++s) {
      init_barrier(full + s * 8, 1);
      init_barrier(empty + s * 8, multiply_warps() * kBlocks);
    }
    publish_barriers();
  }

  // One thread. Stages come tile after tile, chunk after chunk.
  __device__ void draw_ahead(const CUtensorMap* weight, const CUtensorMap* input) const {
    asm volatile("prefetch.tensormap [%0];" ::"l"(input) : "memory");
    for (int32_t s = 0; s < kStages && s < args.chunks; ++s) draw_weights(weight, s, tile, s);
  }
  __device__ void draw(const CUtensorMap* weight, const CUtensorMap* input) const {
    int32_t stage = 0, ahead = min(kStages, args.chunks);
    uint32_t phase = 1;  // of the ring's first turn nothing is waited for
    for (int32_t of = tile; of < args.tiles; of += tile_step) {
#pragma unroll 1
      for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
        if (ahead > 0) {
          --ahead;
        } else {
          wait_barrier(empty + stage * 8, phase);
          draw_weights(weight, stage, of, chunk);
        }
        draw_input(input, stage, chunk);
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
    }
    if constexpr (kPair) {  // the other block's last arrivals must find this one's shared memory
      for (int s = 0; s < kStages; ++s) {
        wait_cluster_barrier(empty + stage * 8, phase);
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
    }
  }

  // The eight warps: two groups, each with half of the tile's rows.
  __device__ void multiply_tiles() const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t half = warp / kGroupWarps * (kInputBytes / 2);
    Store store(args, static_cast<int32_t>(rank) * kTileRows + warp * 16 + lane() / 4);
    float sum[kCols / 2];
    int32_t stage = 0;
    uint32_t phase = 0;
    for (int32_t of = tile; of < args.tiles; of += tile_step) {
      int32_t before = -1;  // the stage that is multiplied while this one comes
#pragma unroll 1
      for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
        wait_barrier(full + stage * 8, phase);
        const uint32_t at = ring + stage * kStageBytes;
        const uint64_t input = matrix_descriptor(at + half);
        const uint64_t weights = matrix_descriptor(at + kInputBytes);
        begin_products();
#pragma unroll
        for (int k = 0; k < kAtom / 16; ++k)  // descriptors count 16 bytes
          multiply<kCols>(input + k * 2, weights + k * 2, sum, chunk > 0 || k > 0);
        commit_products();
        if (before >= 0) {
          wait_products<1>();
          release(before);
        }
        before = stage;
        if (++stage == kStages) stage = 0, phase ^= 1;
      }
      wait_products<0>();
      take_products(sum);
      release(before);
      store.take(sum, of);
    }
    store.end(blockIdx.x / kBlocks, gridDim.x / kBlocks);
  }

 private:
  // The weights of a stage, and the bytes that its barrier waits for.
  __device__ void draw_weights(const CUtensorMap* weight, int32_t stage, int32_t of,
                               int32_t chunk) const {
    const uint32_t barrier = full + stage * 8, to = ring + stage * kStageBytes + kInputBytes;
    expect_bytes(barrier, kStageBytes - (kTileRows - args.drawn) * kRowBytes);
    if constexpr (kPair) {
      if (stage % kBlocks != rank) return;  // the other block draws them
      asm volatile(
          "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
          ".multicast::cluster [%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
          "l"(weight), "r"(chunk * kAtom), "r"(0), "r"(of * (kCols / 16)), "r"(barrier),
          "h"(static_cast<uint16_t>(3))
          : "memory");
    } else {
      asm volatile(
          "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(to),
          "l"(weight), "r"(chunk * kAtom), "r"(0), "r"(of * (kCols / 16)), "r"(barrier)
          : "memory");
    }
  }
  __device__ void draw_input(const CUtensorMap* input, int32_t stage, int32_t chunk) const {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(ring + stage * kStageBytes),
        "l"(input), "r"(chunk * kAtom), "r"(static_cast<int32_t>(rank) * kTileRows),
        "r"(full + stage * 8)
        : "memory");
  }
  // This warp reads the stage no longer; both blocks draw into both.
  __device__ void release(int32_t stage) const {
    if constexpr (kPair) {
      if (lane() < 2) arrive_at_block(of_block(empty + stage * 8, static_cast<uint32_t>(lane())));
    } else {
      if (lane() == 0) arrive(empty + stage * 8);
    }
  }
};

template <int kCols, bool kPair, class Store>
__global__ void __launch_bounds__(kThreads, 1)
    linear_wide_kernel(const __grid_constant__ WideLinear args,
                       const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap input) {
  extern __shared__ unsigned char shared[];
  const WideBlock<kCols, kPair, Store> block(args, shared_address(shared));
  const bool draws = threadIdx.x == kMultiplyWarps * 32;
  if (draws) block.init_barriers();
  __syncwarp();
  if constexpr (kPair) {
    meet_cluster();  // before the other block draws into this one
  } else {
    __syncthreads();
  }
  if (draws) block.draw_ahead(&weight, &input);
  __syncwarp();
  wait_for_predecessor();
  let_successor_start();
  if (threadIdx.x < block.multiply_warps() * 32) {
    block.multiply_tiles();
  } else if (draws) {
    block.draw(&weight, &input);
  }
  __syncwarp();
  if constexpr (kPair) meet_cluster();  // nobody draws or arrives here any more
}

inline int64_t blocks_at_once(StreamRef stream) {
  return std::min(launcher(stream).sm_count, kMaxWideBlocks);
}

// weight: boxes of atoms of kCols rows.
template <int kCols, bool kPair, class Store>
void run(StreamRef stream, const char* name, const LinearArgs& linear, WideLinear args,
         const CUtensorMap& weight) {
  using Block = WideBlock<kCols, kPair, Store>;
  args.out = linear.out;
  args.chunks = static_cast<int32_t>(linear.weight.k / kAtom);
  args.tiles = static_cast<int32_t>(ceil_div(linear.weight.n, kCols));
  args.rows = linear.rows;
  args.drawn = kPair ? kTileRows : static_cast<int32_t>(ceil_div(linear.rows.padded, 8) * 8);
  LaunchShape shape;
  shape.threads = kThreads;
  shape.cluster = kPair ? 2 : 1;
  shape.shared_bytes = Block::kBytes;
  const int64_t at_once = blocks_at_once(stream) / shape.cluster;
  shape.grid = dim3(
      static_cast<unsigned>(ceil_div(args.tiles, ceil_div(args.tiles, at_once)) * shape.cluster));
  const CUtensorMap input =
      make_tensor_map(linear.in.data, linear.rows.padded, linear.weight.k, linear.in.stride,
                      static_cast<uint32_t>(args.drawn), kAtom, true);
  launch<&linear_wide_kernel<kCols, kPair, Store>, kMaxSharedBytes>(stream, name, shape, args,
                                                                    weight, input);
}

template <int kCols, class Store>
void run_rows(StreamRef stream, const char* name, const LinearArgs& linear, const WideLinear& args,
              const CUtensorMap& weight) {
  if (linear.rows.padded <= kTileRows)
    return run<kCols, false, Store>(stream, name, linear, args, weight);
  run<kCols, true, Store>(stream, name, linear, args, weight);
}

// Calls `launch` with the size of tiles that ends first: rounds of a multiprocessor, each with what
// it costs besides.
template <int... kSizes, class Launch>
void with_tile_size(StreamRef stream, const LinearArgs& linear, Launch launch) {
  const int64_t at_once = blocks_at_once(stream) / (linear.rows.padded <= kTileRows ? 1 : 2);
  int best = 0;
  int64_t least = 0;
  for (const int cols : {kSizes...}) {
    const int64_t cost = ceil_div(ceil_div(linear.weight.n, cols), at_once) * (cols + 16);
    if (best == 0 || cost < least) best = cols, least = cost;
  }
  ((best == kSizes ? launch(std::integral_constant<int, kSizes>()) : void()), ...);
}

// Atoms of `cols` rows: eight and eight, `apart` rows from each other, pair after pair `step` rows
// further.
inline CUtensorMap weight_boxes(const Weight& weight, int64_t apart, int64_t step, uint32_t cols) {
  const TensorDim dims[] = {{weight.k, 1, kAtom},
                            {8, weight.k, 8},
                            {2, apart * weight.k, 2},
                            {weight.n / 16, step * weight.k, cols / 16}};
  return make_tensor_map(weight.data, dims, true, L2Ask::k256);
}

}  // namespace refrain::kernels::wide
