#pragma once
// The warps of linear_cluster.cu that multiply, and those that add up the parts of a tile and
// store.

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear_cluster.cuh"
#include "kernels/cuda/peer_packets.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace refrain::kernels::cluster_linear {

// sum[i] += the squares of eight bfloat16 in shared memory, kStep bytes after those of i - 1.
template <int kStep, int kCount>
__device__ inline void add_squares(uint32_t from, float (&sum)[kCount]) {
  uint4 v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = load_shared(from + i * kStep);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float x[8];
    unpack8(v[i], x);
    float even = x[0] * x[0], odd = x[1] * x[1];
#pragma unroll
    for (int j = 2; j < 8; j += 2)
      even = fmaf(x[j], x[j], even), odd = fmaf(x[j + 1], x[j + 1], odd);
    sum[i] += even + odd;
  }
}

template <int kRows, bool kSilu, bool kLora>
struct TileBlock : Block<kRows, kSilu, kLora> {
  using Base = Block<kRows, kSilu, kLora>;
  using L = Layout<kRows>;
  using Base::args, Base::ring, Base::sums, Base::full, Base::empty, Base::summed, Base::read;
  using Base::Base, Base::lane, Base::sends;
  using Base::rank, Base::tile, Base::tile_step, Base::end, Base::chunks, Base::extras;
  using Base::scale, Base::squared, Base::squares;

  // The four warps that multiply.
  __device__ void multiply_tiles() const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int32_t stage = 0;
    uint32_t phase = 0;
    float sum[kRows / 2];
    int32_t at_tile = tile, t = 0;
#pragma unroll 1
    for (; at_tile < end; ++t, at_tile += tile_step) {
      int32_t before = -1;  // the stage that is multiplied while this one comes
      const int32_t items = chunks + extras;
#pragma unroll 1
      for (int32_t item = 0; item < items; ++item) {
        wait_barrier(full + stage * 8, phase);
        const uint32_t at = ring + stage * L::kStageBytes;
        const uint64_t weights = matrix_descriptor(at), input = matrix_descriptor(at + kTileBytes);
        begin_products();
#pragma unroll
        for (int k = 0; k < kChunk / 16; ++k) {  // descriptors count 16 bytes
          const int atom = k / (kAtom / 16), in_atom = k % (kAtom / 16) * 2;
          multiply<kRows>(weights + atom * kTile * 8 + in_atom, input + atom * kRows * 8 + in_atom,
                          sum, item > 0 || k > 0);
        }
        commit_products();
        if (before >= 0) {
          wait_products<1>();
          release(before, t);
        }
        before = stage;
        if (++stage == args.stages) stage = 0, phase ^= 1;
      }
      wait_products<0>();
      take_products(sum);
      if (sends() && at_tile + tile_step >= end) let_successor_start();
      release(before, t);
      if (t > 0) wait_cluster_barrier(read, static_cast<uint32_t>(t - 1) & 1);
      // A lane has pairs of rows of the outputs lane / 4 and lane / 4 + 8 of its warp's sixteen.
      const uint32_t to = sums + ((warp * 16 + lane() / 4) * L::kSumStride + lane() % 4 * 2) * 4;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        store_pair(to + j * 32, sum[j * 4], sum[j * 4 + 1]);
        store_pair(to + j * 32 + 8 * L::kSumStride * 4, sum[j * 4 + 2], sum[j * 4 + 3]);
      }
      send_parts(warp);
    }
    // The cluster's last arrivals too: they must find this block's shared memory, and a barrier of
    // the cluster may overtake them.
    if (t > 0) wait_cluster_barrier(read, static_cast<uint32_t>(t - 1) & 1);
  }

  // The four warps that add up the parts of this block's share of each tile.
  __device__ void add_tiles() const {
    const int32_t live = live_rows(args.rows);
    if (has_norm()) make_scales();
    int32_t at_tile = tile;
#pragma unroll 1
    for (int32_t t = 0; at_tile < end; ++t, at_tile += tile_step) add_tile(at_tile, t, live);
  }

 private:
  __device__ bool has_norm() const { return !kLora && args.unit_norm; }

  // Four rows of one output.
  struct Piece {
    int32_t output, row;
    int64_t col;
    float value[4];
    bool here = false;
    uint32_t number[2];  // of the exchanges of the rows that this lane sends
  };

  // This warp reads the stage no longer. Of a launch with a norm those that add up read
  // the first tile's stages too.
  __device__ void release(int32_t stage, int32_t t) const {
    static_assert(kAddWarps == kMultiplyWarps);
    if (lane() == 0) arrive(empty + stage * 8, has_norm() && t > 0 ? 2 : 1);
  }

  // The tile's outputs that a block adds up: from this one on.
  __device__ int32_t first_of(int32_t of_rank) const { return kTile * of_rank / args.cluster; }
  // Which of the others a block is.
  __device__ static int32_t other(int32_t of_rank, int32_t than) {
    return of_rank < than ? of_rank : of_rank - 1;
  }
  // A warp's sixteen outputs to the blocks that add them up.
  __device__ void send_parts(int warp) const {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    const int32_t to = lane();
    if (to < args.cluster && to != rank) {
      const int32_t share = first_of(to), end_of_share = first_of(to + 1);
      const int32_t from = max(share, warp * 16);
      const int32_t count = min(end_of_share, warp * 16 + 16) - from;
      if (count > 0) {
        const int32_t row = other(rank, to) * (end_of_share - share) + from - share;
        const auto block = static_cast<uint32_t>(to);
        copy_to_block(of_block(sums + L::kPartBytes + row * L::kSumStride * 4, block),
                      sums + from * L::kSumStride * 4, count * L::kSumStride * 4,
                      of_block(summed, block));
      }
    }
    if (lane() != 0) return;
    if (warp != 0) return arrive(summed);
    const int32_t outputs = first_of(rank + 1) - first_of(rank);
    expect_bytes(summed, (args.cluster - 1) * outputs * L::kSumStride * 4);
  }

  __device__ static int32_t adder() {
    return static_cast<int32_t>(threadIdx.x) - kMultiplyWarps * 32;
  }

  // What the norm multiplies by, from the input as the first tile's stages bring it: each block
  // sums up its part of K and sends that to all.
  __device__ void make_scales() const {
    constexpr int kPieces = kRows / 8;  // of eight columns, that a thread has of a stage
    static_assert(kPieces * kAddThreads * 16 == kRows * kChunk * 2);
    if (adder() == 0) expect_bytes(squared, args.cluster * L::kBlockSquares * 4);
    float sum[kPieces] = {};
    int32_t stage = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int32_t item = 0; item < chunks; ++item) {
      wait_barrier(full + stage * 8, phase);
      const uint32_t from = ring + stage * L::kStageBytes + kTileBytes + adder() * 16;
      add_squares<kAddThreads * 16>(from, sum);
      __syncwarp();
      if (lane() == 0) arrive(empty + stage * 8);
      if (++stage == args.stages) stage = 0, phase ^= 1;
    }
    const auto to = static_cast<uint32_t>(lane()) % 8;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {  // rows of an atom have eight pieces, swizzled
      const float row = warp_sum<8>(sum[i]);
      const int32_t place = rank * L::kBlockSquares + i * (kAddThreads / 8) + adder() / 8;
      if (static_cast<int32_t>(to) < args.cluster)
        store_at_block(of_block(squares + place * 4, to), row, of_block(squared, to));
    }
    wait_cluster_barrier(squared, 0);
    if (adder() < kRows) {
      float row = 0;
      for (int32_t of = 0; of < args.cluster * kAtoms; ++of)
        row += load_float(squares + (of * kRows + adder()) * 4);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(scale + adder() * 4),
                   "f"(1.0f / sqrtf(row * args.per_column + args.eps))
                   : "memory");
    }
    meet_adders(false);
  }

  // t: of this block's tiles.
  __device__ void add_tile(int32_t of_tile, int32_t t, int32_t live) const {
    constexpr int kHeld = (kTile / 2 * (kRows / 4) + kAddThreads - 1) / kAddThreads;
    const int32_t share = first_of(rank), outputs = first_of(rank + 1) - share;
    const int32_t wide = kSilu ? outputs / 2 : outputs;
    const int32_t pieces = wide * (kRows / 4);
    const int64_t first =
        kSilu ? int64_t{of_tile} * (kTile / 2) + share / 2 : int64_t{of_tile} * kTile + share;
    Piece piece[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t p = adder() + i * kAddThreads, output = p % wide;
      piece[i] = {output, p / wide * 4, first + output, {}};
      piece[i].here = p < pieces && piece[i].row < live && piece[i].col < args.n;
      if (piece[i].here) load_before(piece[i], live);
    }
    wait_barrier(summed, static_cast<uint32_t>(t) & 1);
    bool strange = false;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (!piece[i].here) continue;
      const uint32_t others = sums + L::kPartBytes;
      float4 part[kMaxCluster] = {}, up_part[kMaxCluster] = {};
#pragma unroll
      for (int32_t r = 0; r < kMaxCluster; ++r) {
        if (r >= args.cluster) break;
        const int32_t row = piece[i].output + (r == rank ? share : other(r, rank) * outputs);
        const uint32_t from =
            (r == rank ? sums : others) + (row * L::kSumStride + piece[i].row) * 4;
        part[r] = load_float4(from);
        if constexpr (kSilu) up_part[r] = load_float4(from + wide * L::kSumStride * 4);
      }
      float sum[4] = {}, up[4] = {};
#pragma unroll
      for (int r = 0; r < kMaxCluster; ++r) {
        add4(sum, part[r]);
        add4(up, up_part[r]);
      }
      if (has_norm()) {
        const float4 by = load_float4(scale + piece[i].row * 4);
        multiply4(sum, by);
        multiply4(up, by);
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
    if (adder() < args.cluster) {
      arrive_at_block(of_block(read, static_cast<uint32_t>(adder())));
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (sends()) {
        send(piece[i], live);
        continue;
      }
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
    if (sends()) load_numbers(piece);
    const float bias = args.bias == nullptr ? 0.0f : args.bias[piece.col];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      piece.value[j] = bias;
      if (args.residual.data == nullptr || piece.row + j >= live) continue;
      piece.value[j] += load_element(args.residual.data, args.residual.dtype,
                                     (piece.row + j) * args.residual.stride + piece.col);
    }
  }

  // Two lanes have two neighbouring columns of four rows: the first sends two of the rows, the
  // second the others. A packet of 16 bytes is eight columns of a row.
  __device__ static bool is_second() { return lane() % 2 != 0; }
  __device__ int64_t packet_of(const Piece& piece, int j) const {
    return (piece.row + (is_second() ? 2 : 0) + j) * args.send.row_packets + piece.col / 8;
  }
  __device__ void load_numbers(Piece& piece) const {
#pragma unroll
    for (int j = 0; j < 2; ++j)
      piece.number[j] = __ldcg(args.send.counters + packet_of(piece, j) / 32) + 1;
  }
  __device__ void send(const Piece& piece, int32_t live) const {
    const bool second = is_second();
    const float(&v)[4] = piece.value;
    const float kept[2] = {second ? v[2] : v[0], second ? v[3] : v[1]};
    const float got[2] = {__shfl_xor_sync(0xffffffffu, second ? v[0] : v[2], 1),
                          __shfl_xor_sync(0xffffffffu, second ? v[1] : v[3], 1)};
    if (!piece.here) return;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (piece.row + (second ? 2 : 0) + j >= live) break;
      const uint32_t word =
          sendable(second ? pack_halves(got[j], kept[j]) : pack_halves(kept[j], got[j]));
      const int64_t at = packet_of(piece, j) * 16 + piece.col % 8 / 2 * 4 +
                         (piece.number[j] % 2 == 0 ? 0 : args.send.odd_bytes);
#pragma unroll
      for (int32_t rank = 0; rank < kMaxPeerRanks; ++rank) {
        if (rank < args.send.size) push_word(static_cast<char*>(args.send.at[rank]) + at, word);
      }
    }
  }

  __device__ static void multiply4(float (&sum)[4], float4 v) {
    sum[0] *= v.x, sum[1] *= v.y, sum[2] *= v.z, sum[3] *= v.w;
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
  __device__ static float load_float(uint32_t from) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
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
