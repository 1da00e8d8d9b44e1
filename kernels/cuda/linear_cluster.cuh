#pragma once
// The parts of linear_cluster.cu on the device: its arguments, the layout of a block's shared
// memory, and what the thread that draws weights and input does. linear_cluster_tiles.cuh has the
// warps that multiply and add up.

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/core/lora_args.h"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace refrain::kernels::cluster_linear {

inline constexpr int kTile = 64;  // outputs of a tile: rows of the wgmma
inline constexpr int kAtoms = 2;  // of a stage
inline constexpr int kChunk = kAtom * kAtoms;
inline constexpr int kTileBytes = kTile * kChunk * 2;  // of a stage
inline constexpr int kMultiplyWarps = 4, kAddWarps = 4;
inline constexpr int kAddThreads = kAddWarps * 32;
inline constexpr int kThreads = (kMultiplyWarps + kAddWarps + 1) * 32;
inline constexpr int kMaxStages = 14, kLeastStages = 3;
inline constexpr int kMaxCluster = 4;
inline constexpr int kMostOthers = 48;  // rows: (cluster - 1) shares of up to kTile / cluster

struct ClusterLinear {
  const float* bias;
  Matrix residual, out;
  int64_t n;       // outputs: columns of `out`
  int32_t chunks;  // of K
  int32_t tiles;   // of kTile rows of the weight
  int32_t stages;
  int32_t cluster;  // blocks that share a tile
  Rows rows;
  bool unit_norm;
  float eps, per_column;  // of that; 1 / K
  PeerPackets send;       // size 0: none
};

// What the rows' adapters add, as further columns of K: a tile's rows of b, all places side by
// side, beside the rows' products with a, zeros in other places than a row's own.
struct Adapters {
  CUtensorMap b[2];    // [outputs][places * max_rank]; of kSilu gate's and up's
  CUtensorMap shrunk;  // [rows][parts][places * max_rank]
  int32_t part_end[kMaxLoraParts];
  int32_t chunks;  // of places * max_rank
};
struct NoAdapters {};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], summed, read, squared;
  alignas(16) float scale[kClusterRows];  // of the input's rows
};

// kRows: of the input, at most.
template <int kRows>
struct Layout {
  static constexpr int kStageBytes = kTileBytes + kRows * kChunk * 2;
  static constexpr int kSumStride = kRows + 4;  // floats; spreads eight outputs over the banks
  // Of a tile: this block's part of all its outputs; the other blocks' parts of this block's share.
  static constexpr int kPartBytes = kTile * kSumStride * 4;
  static constexpr int kOthersBytes = kMostOthers * kSumStride * 4;
  static constexpr int kSumBytes = kPartBytes + kOthersBytes;
  // Of each block's part of K, each atom of a stage and each row: the squares' sum.
  static constexpr int kBlockSquares = kAtoms * kRows;
  static constexpr int kSquareBytes = kMaxCluster * kBlockSquares * 4;
  static constexpr int bytes(int stages) {
    return 1024 + stages * kStageBytes + kSumBytes + kSquareBytes +
           static_cast<int>(sizeof(Barriers));
  }
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - bytes(0)) / kStageBytes);
  static_assert(kStages >= kLeastStages);
  static_assert(2 * bytes(kStages) > kMaxSharedBytes);  // one block a multiprocessor
};

// What every warp of a block knows of its work.
template <int kRows, bool kSilu, bool kLora>
struct Block {
  using L = Layout<kRows>;
  using Extra = std::conditional_t<kLora, Adapters, NoAdapters>;
  const ClusterLinear& args;
  const Extra& adapters;
  uint32_t ring, sums, squares, full, empty, summed, read, squared, scale;  // shared addresses
  int32_t rank, tile, tile_step, end;                                       // tile: its first
  int32_t first_chunk, chunks;                                              // of K
  int32_t extras;  // chunks of adapters, of this block's

  __device__ Block(const ClusterLinear& args, const Extra& adapters, uint32_t shared)
      : args(args),
        adapters(adapters),
        ring((shared + 1023) / 1024 * 1024),
        sums(ring + args.stages * L::kStageBytes),
        squares(sums + L::kSumBytes),
        full(squares + L::kSquareBytes + offsetof(Barriers, full)),
        empty(squares + L::kSquareBytes + offsetof(Barriers, empty)),
        summed(squares + L::kSquareBytes + offsetof(Barriers, summed)),
        read(squares + L::kSquareBytes + offsetof(Barriers, read)),
        squared(squares + L::kSquareBytes + offsetof(Barriers, squared)),
        scale(squares + L::kSquareBytes + offsetof(Barriers, scale)),
        rank(static_cast<int32_t>(block_of_cluster())),
        tile(static_cast<int32_t>(blockIdx.x) / args.cluster),
        tile_step(static_cast<int32_t>(gridDim.x) / args.cluster),
        end(args.tiles),
        first_chunk(args.chunks * rank / args.cluster),
        chunks(args.chunks * (rank + 1) / args.cluster - first_chunk),
        extras(0) {
    if constexpr (kLora) {  // blocks take them in turns
      extras = (adapters.chunks * (kSilu ? 2 : 1) - rank + args.cluster - 1) / args.cluster;
    }
  }

  // What makes the sum starts only with the last tile's end, as it polls for what is sent.
  __device__ bool sends() const { return !kLora && !kSilu && args.send.size > 0; }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void init_barriers() const {
    const auto cluster = static_cast<uint32_t>(args.cluster);
    for (int s = 0; s < args.stages; ++s) {
      init_barrier(full + s * 8, 1);
      init_barrier(empty + s * 8, kMultiplyWarps + (args.unit_norm ? kAddWarps : 0));
    }
    init_barrier(summed, kMultiplyWarps);
    init_barrier(read, cluster);
    init_barrier(squared, 1);
    publish_barriers();
  }

  // One thread. Stages come tile after tile, chunk after chunk; the first ones' weights come before
  // the previous kernel has ended, their input afterwards.
  __device__ void draw_ahead(const CUtensorMap* weight, const CUtensorMap* input) const {
    asm volatile("prefetch.tensormap [%0];" ::"l"(input) : "memory");
    if constexpr (kLora) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&adapters.shrunk) : "memory");
      asm volatile("prefetch.tensormap [%0];" ::"l"(&adapters.b[0]) : "memory");
      if constexpr (kSilu) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&adapters.b[1]) : "memory");
      }
    }
    Cursor at{tile, 0};
#pragma unroll 1
    for (int32_t s = 0; s < args.stages && at.tile < end; ++s, advance(at))
      draw_weights(weight, s, at);
  }
  __device__ void draw(const CUtensorMap* weight, const CUtensorMap* input) const {
    Cursor at{tile, 0};
#pragma unroll 1
    for (int32_t s = 0; s < args.stages && at.tile < end; ++s, advance(at))
      draw_input(input, s, at);
    int32_t stage = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (; at.tile < end; advance(at)) {
      wait_barrier(empty + stage * 8, phase);
      draw_weights(weight, stage, at);
      draw_input(input, stage, at);
      if (++stage == args.stages) stage = 0, phase ^= 1;
    }
  }

 private:
  struct Cursor {
    int32_t tile, item;
  };
  __device__ void advance(Cursor& at) const {
    if (++at.item == chunks + extras) at.item = 0, at.tile += tile_step;
  }

  // One thread. The weights of a stage, and the bytes that its barrier waits for.
  __device__ void draw_weights(const CUtensorMap* weight, int32_t stage, Cursor at) const {
    const uint32_t barrier = full + stage * 8, to = ring + stage * L::kStageBytes;
    const int32_t atom = (first_chunk + at.item) * kAtoms;
    expect_bytes(barrier, L::kStageBytes);
    if constexpr (kLora) {
      if (at.item >= chunks) return draw_b(at, to, barrier);
    }
    if constexpr (kSilu) {  // each block's share of the tile: rows of gate, then of up
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %2, %2, %3, %4}], [%5];" ::"r"(to),
          "l"(weight), "r"(0), "r"(at.tile * args.cluster), "r"(atom), "r"(barrier)
          : "memory");
    } else {
      draw_box(weight, to, at.tile * kTile, atom, barrier);
    }
  }
  __device__ void draw_input(const CUtensorMap* input, int32_t stage, Cursor at) const {
    const uint32_t to = ring + stage * L::kStageBytes + kTileBytes, barrier = full + stage * 8;
    if constexpr (kLora) {
      if (at.item >= chunks) return draw_shrunk(at, to, barrier);
    }
    draw_box(input, to, 0, (first_chunk + at.item) * kAtoms, barrier);
  }
  __device__ static void draw_box(const CUtensorMap* map, uint32_t to, int32_t row, int32_t atom,
                                  uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(atom), "r"(barrier)
        : "memory");
  }

  // Of the chunks of adapters: which of all blocks', and whose part it is.
  __device__ int32_t extra(Cursor at) const { return (at.item - chunks) * args.cluster + rank; }
  __device__ int32_t part_of(Cursor at) const {
    if constexpr (kSilu) return extra(at) / adapters.chunks;
    int32_t part = 0;
    while (at.tile * kTile >= adapters.part_end[part]) ++part;
    return part;
  }
  // Of kSilu zeros in the place of the other part's rows.
  __device__ void draw_b(Cursor at, uint32_t to, uint32_t barrier) const {
    const int32_t col = extra(at) % adapters.chunks * kChunk;
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      const uint32_t to_atom = to + atom * kTile * kAtom * 2;
      if constexpr (kSilu) {
        const int32_t part = part_of(at);
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to_atom),
            "l"(&adapters.b[part]), "r"(col + atom * kAtom), "r"(0), "r"(-part),
            "r"(at.tile * args.cluster), "r"(barrier)
            : "memory");
      } else {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3}], [%4];" ::"r"(to_atom),
            "l"(&adapters.b[0]), "r"(col + atom * kAtom), "r"(at.tile * kTile), "r"(barrier)
            : "memory");
      }
    }
  }
  __device__ void draw_shrunk(Cursor at, uint32_t to, uint32_t barrier) const {
    const int32_t col = extra(at) % adapters.chunks * kChunk;
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to + atom * kRows * kAtom * 2),
          "l"(&adapters.shrunk), "r"(col + atom * kAtom), "r"(part_of(at)), "r"(0), "r"(barrier)
          : "memory");
    }
  }
};

}  // namespace refrain::kernels::cluster_linear
