#pragma once
// FlashInfer's attention kernel for Hopper takes its keys and values from a mainloop class. This
// one copies them from our paged cache by bulk tensor copies (TMA), 16 tokens and 64 columns each,
// one a lane of the producer warp; FlashInfer's own for pages has four warps that gather rows.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#pragma nv_diagnostic pop

#include <cstdint>

#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels {

struct ScoreScale {
  float sm_scale = 1;  // FlashInfer's name
};

inline constexpr int32_t kPageBoxRows = 16;  // a block of the cache is a multiple of it
inline constexpr int32_t kPageBoxCols = 64;  // 128 bytes, the width of the swizzle

template <class Traits>
struct PagedMainloop : flashinfer::CollectiveMainloop<ScoreScale, Traits, /*CAUSAL=*/true> {
  using Base = flashinfer::CollectiveMainloop<ScoreScale, Traits, true>;
  using Pipeline = typename Base::MainloopPipeline;
  using State = typename Base::PipelineState;
  static constexpr int32_t kDim = Traits::HEAD_DIM_QK, kTileKeys = Traits::CTA_KV,
                           kTileQueries = Traits::CTA_Q;
  static constexpr int32_t kParts = kDim / kPageBoxCols;  // boxes side by side
  static constexpr int32_t kBoxes = kTileKeys / kPageBoxRows * kParts;
  static constexpr int32_t kPartElements = kTileKeys * kPageBoxCols;
  static constexpr int32_t kStageElements = kTileKeys * kDim;
  static_assert(kTileKeys % kPageBoxRows == 0 && kBoxes <= 32 && kPageBoxRows * kParts <= 32);

  // How tiles lie in shared memory, before the swizzle: rows of 128 bytes, parts after each other.
  template <class Layout>
  static constexpr bool is_parts(const Layout& swizzled, int32_t rows) {
    const auto layout = swizzled.layout_b();
    return layout(1, 0) == kPageBoxCols && layout(rows - 1, 0) == (rows - 1) * kPageBoxCols &&
           layout(0, kDim - kPageBoxCols) == (kParts - 1) * rows * kPageBoxCols;
  }
  static_assert(is_parts(typename Traits::SmemLayoutQ{}, kTileQueries) &&
                is_parts(cute::take<0, 2>(typename Traits::SmemLayoutK{}), kTileKeys) &&
                is_parts(cute::take<0, 2>(typename Traits::SmemLayoutV{}), kTileKeys));

  // The cache as planes of [block_size, kDim]: [block][K, V][kv head].
  struct Params {
    CUtensorMap queries;      // [tokens, heads, kDim]
    CUtensorMap boxes, rows;  // [planes, block_size, kDim], in copies of kPageBoxRows rows, of one
    const int32_t* block_table = nullptr;
    int32_t block_size = 0, kv_heads = 0;
    int window_left = -1;  // FlashInfer's names
    ScoreScale additional_params;
  };

  // What a lane copies of each tile.
  struct Box {
    int32_t row = 0, col = 0;  // in the tile
    __device__ bool exists() const { return row < kTileKeys; }
  };
  // Of a lane's box of one tile: the keys' plane, the first row in it.
  struct Place {
    int32_t plane = 0, row = 0;
  };

  static __device__ void prefetch_tma_descriptors(const Params& params) {
    cute::prefetch_tma_descriptor(&params.queries);
    cute::prefetch_tma_descriptor(&params.boxes);
    cute::prefetch_tma_descriptor(&params.rows);
  }
  static __device__ int get_num_kv_tiles(const Params&, int tile, int tokens, int length) {
    const int visible = min(length, (tile + 1) * kTileQueries + length - tokens);
    return (visible + kTileKeys - 1) / kTileKeys;
  }

  static __device__ int32_t lane() { return static_cast<int32_t>(threadIdx.x) % 32; }
  static __device__ Box own_box() {
    return {lane() / kParts * kPageBoxRows, lane() % kParts * kPageBoxCols};
  }

  // Boxes from `length` on are read where no row is, as zeros.
  static __device__ Place look_up(const Params& params, const int32_t* blocks, int32_t kv_head,
                                  int32_t length, int32_t position) {
    if (position >= length) return {0, params.block_size};
    const int32_t block = blocks[position / params.block_size];
    return {block * 2 * params.kv_heads + kv_head, position % params.block_size};
  }

  static __device__ void copy_box(const CUtensorMap& map, uint64_t* barrier, void* to, int32_t col,
                                  int32_t row, int32_t plane) {  // or column, head, token
    cute::SM90_TMA_LOAD_3D::copy(&map, barrier,
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), to,
                                 col, row, plane);
  }

  template <class Element>
  static __device__ void load_keys(const Params& params, Pipeline& pipeline, State& state,
                                   Element* keys, Place from) {
    pipeline.producer_acquire(state);
    const Box box = own_box();
    if (box.exists()) {
      copy_box(params.boxes, pipeline.producer_get_barrier(state),
               keys + state.index() * kStageElements + box.col / kPageBoxCols * kPartElements +
                   box.row * kPageBoxCols,
               box.col, from.row, from.plane);
    }
    ++state;
  }

  // `live`: rows of the tile below the length. What lies beyond them in a block may hold anything,
  // and a weight of 0 would not undo a NaN: the box that holds the last of them comes row by row,
  // zeros after it. (Keys need no such care: their scores are masked.)
  template <class Element>
  static __device__ void load_values(const Params& params, Pipeline& pipeline, State& state,
                                     Element* values, Place from, int32_t live) {
    pipeline.producer_acquire(state);
    uint64_t* barrier = pipeline.producer_get_barrier(state);
    Element* stage = values + state.index() * kStageElements;
    const Box box = own_box();
    const int32_t broken = live % kPageBoxRows != 0 ? live - live % kPageBoxRows : kTileKeys;
    if (box.exists() && box.row != broken) {
      copy_box(params.boxes, barrier,
               stage + box.col / kPageBoxCols * kPartElements + box.row * kPageBoxCols, box.col,
               from.row, from.plane + params.kv_heads);
    }
    if (broken < kTileKeys) {
      const int owner = broken / kPageBoxRows * kParts;
      const int32_t plane = __shfl_sync(~0u, from.plane, owner) + params.kv_heads;
      const int32_t first = __shfl_sync(~0u, from.row, owner);
      const int32_t row = lane() % kPageBoxRows, part = lane() / kPageBoxRows;
      if (part < kParts) {
        copy_box(params.rows, barrier, stage + part * kPartElements + (broken + row) * kPageBoxCols,
                 part * kPageBoxCols, broken + row < live ? first + row : params.block_size, plane);
      }
    }
    ++state;
  }

  // The producer warp's part of one tile of queries: keys and values from the last tile to the
  // first, the keys one tile ahead.
  template <bool LEFT_SLIDING_WINDOW, class BlockCoord, class Tiles, class SharedStorage>
  __device__ void load(const Params& params, Pipeline pipeline_k, Pipeline pipeline_v,
                       State& state_k, State& state_v, SharedStorage& shared, Tiles&,
                       const typename Tiles::Params&, typename Tiles::WorkTileInfo&,
                       const BlockCoord& coord, int work) {
    static_assert(!LEFT_SLIDING_WINDOW);
    const auto [q_tile, q_head, kv_head, token, table, tokens, length, row] = coord;
    const int32_t* blocks = params.block_table + table;
    const int32_t own_row = own_box().row;
    auto* keys = shared.smem_k.data();
    auto* values = shared.smem_v.data();

    int32_t tile = get_num_kv_tiles(params, q_tile, tokens, length) - 1;
    Place at = look_up(params, blocks, kv_head, length, tile * kTileKeys + own_row);
    load_keys(params, pipeline_k, state_k, keys, at);
    __syncwarp();

    // The queries before these have been read.
    cutlass::arch::NamedBarrier::sync(Base::NUM_MMA_THREADS + Traits::NUM_PRODUCER_THREADS,
                                      static_cast<int>(flashinfer::NamedBarriers::kQueryEmpty));
    load_queries(params, shared, token + q_tile * kTileQueries, q_head);
    // The output before these, which lies where values go, has been written.
    shared.barrier_O.wait((work + 1) % 2);

    for (; tile > 0; --tile) {
      const Place before =
          look_up(params, blocks, kv_head, length, (tile - 1) * kTileKeys + own_row);
      load_keys(params, pipeline_k, state_k, keys, before);
      load_values(params, pipeline_v, state_v, values, at, length - tile * kTileKeys);
      at = before;
    }
    load_values(params, pipeline_v, state_v, values, at, length);
    __syncwarp();
  }

  template <class SharedStorage>
  static __device__ void load_queries(const Params& params, SharedStorage& shared, int32_t token,
                                      int32_t q_head) {
    if (lane() != 0) return;
    shared.barrier_Q.arrive_and_expect_tx(Base::TmaTransactionBytesQ);
    auto* barrier = reinterpret_cast<uint64_t*>(&shared.barrier_Q);
    for (int32_t part = 0; part < kParts; ++part) {
      copy_box(params.queries, barrier, shared.smem_q.data() + part * kTileQueries * kPageBoxCols,
               part * kPageBoxCols, q_head, token);
    }
  }
};

}  // namespace refrain::kernels
