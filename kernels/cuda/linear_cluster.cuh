#pragma once
// The parts of linear_cluster.cu on the device: its arguments, the layout of a block's shared
// memory, and what each of a block's warps does.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#include <cute/arch/mma_sm90_gmma.hpp>
#pragma nv_diagnostic pop

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels::cluster_linear {

inline constexpr int kTile = 64;  // outputs of a tile: rows of the wgmma
inline constexpr int kAtom = 64;  // columns that are swizzled together: 128 bytes of a row
inline constexpr int kAtoms = 2;  // of a stage
inline constexpr int kChunk = kAtom * kAtoms;
inline constexpr int kTileBytes = kTile * kChunk * 2;  // of a stage
inline constexpr int kMultiplyWarps = 4, kAddWarps = 4;
inline constexpr int kAddThreads = kAddWarps * 32;
inline constexpr int kThreads = (kMultiplyWarps + kAddWarps + 1) * 32;
inline constexpr int kMaxStages = 14, kLeastStages = 3;
inline constexpr int kMaxCluster = 4;
inline constexpr int kPairCluster = 2;  // with SiLU·mul and adapters
inline constexpr int kPairCols = kTile / 2 / kPairCluster;
inline constexpr int kMostOthers = 48;  // rows: (cluster - 1) shares of up to kTile / cluster
inline constexpr int kBuffers = 2;      // of sums

struct ClusterLinear {
  const float* bias;
  Matrix residual, out;
  int64_t n;       // outputs: columns of `out`
  int32_t chunks;  // of K
  int32_t tiles;   // of kTile rows of the weight
  int32_t stages;
  int32_t cluster;  // blocks that share a tile
  Rows rows;
};

// What the rows' adapters add, as further columns of K: lines of b, all places' of a part one after
// the other, beside the rows' products with a, zeros in other places than a row's own.
struct Adapters {
  CUtensorMap b[kMaxLoraParts];  // by part; of kSilu gate and up
  CUtensorMap shrunk;            // [rows][parts][places * max_rank]
  int32_t part_end[kMaxLoraParts];
  int32_t parts;
  int32_t chunks;      // of a part's lines
  int32_t max_places;  // of a chunk
};
struct NoAdapters {};

struct Barriers {
  uint64_t full[kMaxStages], empty[kMaxStages], summed[kBuffers], read[kBuffers];
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
  static constexpr int bytes(int stages) {
    return 1024 + stages * kStageBytes + kBuffers * kSumBytes + static_cast<int>(sizeof(Barriers));
  }
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - bytes(0)) / kStageBytes);
  static_assert(kStages >= kLeastStages);
  static_assert(2 * bytes(kStages) > kMaxSharedBytes);  // one block a multiprocessor
};

// Of kChunk lines of b: all of kPairCols columns come together, 32 bytes each, swizzled, eight
// lines after 256 bytes.
__device__ inline uint64_t pair_descriptor(uint32_t address) {
  static_assert(kPairCols * 2 == 32);
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         (uint64_t{kChunk * kPairCols * 2 / 16} << 16) | (uint64_t{16} << 32) | (uint64_t{3} << 62);
}

// Of the rows of a tile or of the input in shared memory: 128 bytes each, swizzled, eight rows
// after 1024 bytes.
__device__ inline uint64_t matrix_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | (uint64_t{1} << 16) |
         (uint64_t{64} << 32) | (uint64_t{1} << 62);
}

namespace gmma = cute::SM90::GMMA;
template <int kRows>
struct Multiply;
template <>
struct Multiply<16> : gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K> {};
template <>
struct Multiply<32> : gmma::MMA_64x32x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K> {};
template <>
struct Multiply<64> : gmma::MMA_64x64x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K> {};

// The weights' rows lie along 128 bytes, one column of K after the other: as b's lines do.
template <int kRows>
struct MultiplyLines;
template <>
struct MultiplyLines<16> : gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::MN, gmma::Major::K> {};
template <>
struct MultiplyLines<32> : gmma::MMA_64x32x16_F32BF16BF16_SS<gmma::Major::MN, gmma::Major::K> {};
template <>
struct MultiplyLines<64> : gmma::MMA_64x64x16_F32BF16BF16_SS<gmma::Major::MN, gmma::Major::K> {};

template <class Instruction, int kRows, size_t... i>
__device__ inline void multiply(uint64_t weights, uint64_t input, float (&sum)[kRows / 2], bool add,
                                std::index_sequence<i...> /*each*/) {
  Instruction::fma(weights, input, sum[i]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

// What every warp of a block knows of its work.
template <int kRows, bool kSilu, bool kLora>
struct Block {
  using L = Layout<kRows>;
  using Extra = std::conditional_t<kLora, Adapters, NoAdapters>;
  const ClusterLinear& args;
  const Extra& adapters;
  uint32_t ring, sums, full, empty, summed, read;  // shared addresses
  int32_t rank, tile, tile_step, end;              // tile: its first
  int32_t first_chunk, chunks;                     // of K
  int32_t extras;                                  // chunks of adapters, of this block's

  __device__ Block(const ClusterLinear& args, const Extra& adapters, uint32_t shared)
      : args(args),
        adapters(adapters),
        ring((shared + 1023) / 1024 * 1024),
        sums(ring + args.stages * L::kStageBytes),
        full(sums + kBuffers * L::kSumBytes + offsetof(Barriers, full)),
        empty(sums + kBuffers * L::kSumBytes + offsetof(Barriers, empty)),
        summed(sums + kBuffers * L::kSumBytes + offsetof(Barriers, summed)),
        read(sums + kBuffers * L::kSumBytes + offsetof(Barriers, read)),
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

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void init_barriers() const {
    const auto cluster = static_cast<uint32_t>(args.cluster);
    for (int s = 0; s < args.stages; ++s) {
      init_barrier(full + s * 8, 1);
      init_barrier(empty + s * 8, kMultiplyWarps);
    }
    for (int b = 0; b < kBuffers; ++b) {
      init_barrier(summed + b * 8, kMultiplyWarps);
      init_barrier(read + b * 8, cluster);
    }
    publish_barriers();
  }

  // One thread. Stages come tile after tile, chunk after chunk; the first ones' weights come before
  // the previous kernel has ended, their input afterwards.
  __device__ void draw_ahead(const CUtensorMap* weight, const CUtensorMap* input) const {
    asm volatile("prefetch.tensormap [%0];" ::"l"(input) : "memory");
    if constexpr (kLora) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&adapters.shrunk) : "memory");
      for (int32_t part = 0; part < adapters.parts; ++part)
        asm volatile("prefetch.tensormap [%0];" ::"l"(&adapters.b[part]) : "memory");
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

  // The four warps that multiply.
  __device__ void multiply_tiles() const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int32_t stage = 0;
    uint32_t phase = 0;
    float sum[kRows / 2];
    int32_t at_tile = tile;
#pragma unroll 1
    for (int32_t t = 0; at_tile < end; ++t, at_tile += tile_step) {
      int32_t before = -1;  // the stage that is multiplied while this one comes
      const int32_t items = chunks + extras;
#pragma unroll 1
      for (int32_t item = 0; item < items; ++item) {
        wait_barrier(full + stage * 8, phase);
        const uint32_t at = ring + stage * L::kStageBytes;
        const uint64_t weights = matrix_descriptor(at), input = matrix_descriptor(at + kTileBytes);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        if (!kLora || item < chunks) {
#pragma unroll
          for (int k = 0; k < kChunk / 16; ++k) {  // descriptors count 16 bytes
            const int atom = k / (kAtom / 16), in_atom = k % (kAtom / 16) * 2;
            multiply<Multiply<kRows>, kRows>(
                weights + atom * kTile * 8 + in_atom, input + atom * kRows * 8 + in_atom, sum,
                item > 0 || k > 0, std::make_index_sequence<kRows / 2>());
          }
        } else {
#pragma unroll
          for (int k = 0; k < kChunk / 16; ++k) {
            const int atom = k / (kAtom / 16), in_atom = k % (kAtom / 16) * 2;
            const uint64_t lines =
                kSilu ? pair_descriptor(at) + k * kPairCols * 2 : weights + k * kTile * 2;
            multiply<MultiplyLines<kRows>, kRows>(lines, input + atom * kRows * 8 + in_atom, sum,
                                                  true, std::make_index_sequence<kRows / 2>());
          }
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (before >= 0) {
          asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
          if (lane() == 0) arrive(empty + before * 8);
        }
        before = stage;
        if (++stage == args.stages) stage = 0, phase ^= 1;
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (float& value : sum) asm volatile("" : "+f"(value)::"memory");  // not read before
      if (lane() == 0) arrive(empty + before * 8);
      const int32_t buffer = t % kBuffers, use = t / kBuffers;
      if (use > 0) wait_cluster_barrier(read + buffer * 8, static_cast<uint32_t>(use - 1) & 1);
      // A lane has pairs of rows of the outputs lane / 4 and lane / 4 + 8 of its warp's sixteen.
      const uint32_t to = sums + buffer * L::kSumBytes +
                          ((warp * 16 + lane() / 4) * L::kSumStride + lane() % 4 * 2) * 4;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        store_pair(to + j * 32, sum[j * 4], sum[j * 4 + 1]);
        store_pair(to + j * 32 + 8 * L::kSumStride * 4, sum[j * 4 + 2], sum[j * 4 + 3]);
      }
      send_parts(warp, buffer);
    }
  }

  // The four warps that add up the parts of this block's share of each tile.
  __device__ void add_tiles() const {
    const int32_t live = live_rows(args.rows);
    int32_t at_tile = tile;
#pragma unroll 1
    for (int32_t t = 0; at_tile < end; ++t, at_tile += tile_step) add_tile(at_tile, t, live);
  }

 private:
  struct Cursor {
    int32_t tile, item;
  };
  // Four rows of one output.
  struct Piece {
    int32_t output, row;
    int64_t col;
    float value[4];
    bool here = false;
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
      if (at.item >= chunks) return draw_lines(at, to, barrier);
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
  // kChunk lines of b's columns of the tile; of kSilu zeros in the place of the other part's.
  __device__ void draw_lines(Cursor at, uint32_t to, uint32_t barrier) const {
    const int32_t part = part_of(at);
    const int32_t place = extra(at) % adapters.chunks * adapters.max_places;
    if constexpr (kSilu) {
      asm volatile(
          "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %2, %3, %4, %5}], [%6];" ::"r"(to),
          "l"(&adapters.b[part]), "r"(0), "r"(place), "r"(-part), "r"(at.tile * args.cluster),
          "r"(barrier)
          : "memory");
    } else {
      const int32_t begin = part == 0 ? 0 : adapters.part_end[part - 1];
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
          "l"(&adapters.b[part]), "r"(at.tile * kTile - begin), "r"(0), "r"(place), "r"(barrier)
          : "memory");
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

  // The tile's outputs that a block adds up: from this one on.
  __device__ int32_t first_of(int32_t of_rank) const { return kTile * of_rank / args.cluster; }
  // Which of the others a block is.
  __device__ static int32_t other(int32_t of_rank, int32_t than) {
    return of_rank < than ? of_rank : of_rank - 1;
  }
  // A warp's sixteen outputs to the blocks that add them up.
  __device__ void send_parts(int warp, int32_t buffer) const {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    const uint32_t part = sums + buffer * L::kSumBytes, barrier = summed + buffer * 8;
    const int32_t to = lane();
    if (to < args.cluster && to != rank) {
      const int32_t share = first_of(to), end_of_share = first_of(to + 1);
      const int32_t from = max(share, warp * 16);
      const int32_t count = min(end_of_share, warp * 16 + 16) - from;
      if (count > 0) {
        const int32_t row = other(rank, to) * (end_of_share - share) + from - share;
        const auto block = static_cast<uint32_t>(to);
        copy_to_block(of_block(part + L::kPartBytes + row * L::kSumStride * 4, block),
                      part + from * L::kSumStride * 4, count * L::kSumStride * 4,
                      of_block(barrier, block));
      }
    }
    if (lane() != 0) return;
    if (warp != 0) return arrive(barrier);
    const int32_t outputs = first_of(rank + 1) - first_of(rank);
    expect_bytes(barrier, (args.cluster - 1) * outputs * L::kSumStride * 4);
  }

  // t: of this block's tiles.
  __device__ void add_tile(int32_t of_tile, int32_t t, int32_t live) const {
    constexpr int kHeld = (kTile / 2 * (kRows / 4) + kAddThreads - 1) / kAddThreads;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) - kMultiplyWarps * 32;
    const int32_t share = first_of(rank), outputs = first_of(rank + 1) - share;
    const int32_t wide = kSilu ? outputs / 2 : outputs, pieces = wide * (kRows / 4);
    const int32_t buffer = t % kBuffers, use = t / kBuffers;
    const int64_t first =
        kSilu ? int64_t{of_tile} * (kTile / 2) + share / 2 : int64_t{of_tile} * kTile + share;
    Piece piece[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t p = thread + i * kAddThreads;
      piece[i] = {p % wide, p / wide * 4, first + p % wide, {}};
      piece[i].here = p < pieces && piece[i].row < live && piece[i].col < args.n;
      if (piece[i].here) load_before(piece[i], live);
    }
    wait_barrier(summed + buffer * 8, static_cast<uint32_t>(use) & 1);
    bool strange = false;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!piece[i].here) continue;
      const uint32_t mine = sums + buffer * L::kSumBytes, others = mine + L::kPartBytes;
      float4 part[kMaxCluster] = {}, up_part[kMaxCluster] = {};
#pragma unroll
      for (int32_t r = 0; r < kMaxCluster; ++r) {
        if (r >= args.cluster) break;
        const int32_t row = piece[i].output + (r == rank ? share : other(r, rank) * outputs);
        const uint32_t from =
            (r == rank ? mine : others) + (row * L::kSumStride + piece[i].row) * 4;
        part[r] = load_float4(from);
        if constexpr (kSilu) up_part[r] = load_float4(from + wide * L::kSumStride * 4);
      }
      float sum[4] = {}, up[4] = {};
#pragma unroll
      for (int r = 0; r < kMaxCluster; ++r) {
        add4(sum, part[r]);
        add4(up, up_part[r]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kSilu) {
          piece[i].value[j] = silu(sum[j]) * up[j];
        } else {
          piece[i].value[j] += sum[j];
        }
        strange |= piece[i].value[j] != piece[i].value[j];
      }
    }
    meet_adders(strange);
    if (thread < args.cluster) {
      arrive_at_block(of_block(read + buffer * 8, static_cast<uint32_t>(thread)));
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!piece[i].here) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (piece[i].row + j >= live) break;
        store_element(args.out.data, args.out.dtype,
                      (piece[i].row + j) * args.out.stride + piece[i].col, piece[i].value[j]);
      }
    }
  }
  __device__ void load_before(Piece& piece, int32_t live) const {
    if constexpr (kSilu) return;
    const float bias = args.bias == nullptr ? 0.0f : args.bias[piece.col];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      piece.value[j] = bias;
      if (args.residual.data == nullptr || piece.row + j >= live) continue;
      piece.value[j] += load_element(args.residual.data, args.residual.dtype,
                                     (piece.row + j) * args.residual.stride + piece.col);
    }
  }
  __device__ static void add4(float (&sum)[4], float4 v) {
    sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
  }
  __device__ static float4 load_float4(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
  }
  __device__ static void store_pair(uint32_t to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
  }
  // All adders have read, not only asked: the predicate needs their values.
  __device__ static void meet_adders(bool strange) {
    uint32_t any;
    asm volatile(
        "{\n .reg .pred in, out;\n setp.ne.u32 in, %1, 0;\n"
        " barrier.red.or.pred out, 1, %2, in;\n selp.u32 %0, 1, 0, out;\n}"
        : "=r"(any)
        : "r"(static_cast<uint32_t>(strange)), "n"(kAddThreads)
        : "memory");
  }
};

}  // namespace refrain::kernels::cluster_linear
