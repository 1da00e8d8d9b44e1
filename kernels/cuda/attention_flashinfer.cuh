#pragma once
// FlashInfer's attention kernel for Hopper (FlashAttention-3: Shah et al., 2024) over our paged
// cache. Its tile scheduler is ours: the host plans nothing, each block finds its tiles from the
// lengths on the device, so that the launch shape depends on the key alone.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#pragma nv_diagnostic pop

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prefill_order.h"

namespace refrain::kernels {

// Tiles of kTileQueries queries of one head, of the rows that have more than `short_tokens` tokens.
// Turn by turn each block takes one, in the order of prefill_order.h.
template <int kTileQueries>
struct RowTiles {
  struct Params {
    BatchInputs inputs;
    Rows reqs;
    int32_t short_tokens = 0, q_heads = 0, group = 1, max_blocks = 0;
    bool beside = false;
  };

  // The names are FlashInfer's; a block coordinate: tile of the row, query head, KV head, first
  // token of the row, start of its block table, its tokens, its length, the row.
  struct WorkTileInfo {
    int tile = 0, q_head = 0, kv_head = 0, token = 0, table = 0, tokens = 0, length = 0, row = -1;
    __device__ bool is_valid(const Params&) const { return row >= 0; }
    __device__ auto get_block_coord(const Params&) const {
      return cute::tuple{tile, q_head, kv_head, token, table, tokens, length, row};
    }
  };

  int32_t turn = 0;
  int32_t first_row = 0, before = 0;  // 32 rows that are looked at; work units of those before them

  // All threads come here first.
  __device__ WorkTileInfo get_initial_work(const Params& params) {
    // Beside: that one lets this one start when it has waited itself, so all before it have ended.
    if (!params.beside) wait_for_predecessor();
    return find(params, unit_of_turn(0, blockIdx.x, gridDim.x));
  }
  template <bool is_producer>
  __device__ WorkTileInfo get_next_work(const Params& params, const WorkTileInfo&) {
    return find(params, unit_of_turn(++turn, blockIdx.x, gridDim.x));
  }
  // For schedulers whose producer tells its consumers the next tile.
  __device__ void init_consumer() const {}
  __device__ void prefetch_next_work(const Params&, const WorkTileInfo&) const {}
  __device__ void broadcast_next_work(const WorkTileInfo&) const {}

  // Unit `unit` of all rows' units; units asked for only grow. Whole warps, each for itself.
  __device__ WorkTileInfo find(const Params& params, int32_t unit) {
    const int32_t rows = live_rows(params.reqs), lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (; first_row < rows; first_row += 32) {
      const int32_t row = first_row + lane;
      int32_t start = 0, tokens = 0;
      if (row < rows) {
        start = params.inputs.query_start[row];
        tokens = params.inputs.query_start[row + 1] - start;
      }
      const int32_t tiles = tiles_of_row(tokens, params.short_tokens, kTileQueries);
      int32_t end = tiles * params.q_heads;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int32_t other = __shfl_up_sync(~0u, end, offset);
        if (lane >= offset) end += other;
      }
      const unsigned later = __ballot_sync(~0u, before + end > unit);
      if (later != 0) {
        const int owner = __ffs(static_cast<int>(later)) - 1;
        const int32_t its_tiles = __shfl_sync(~0u, tiles, owner);
        const int32_t in_row =
            unit - before - (__shfl_sync(~0u, end, owner) - its_tiles * params.q_heads);
        WorkTileInfo work;
        work.row = first_row + owner;
        work.tile = its_tiles - 1 - in_row / params.q_heads;  // those that see most keys first
        work.q_head = in_row % params.q_heads;
        work.kv_head = work.q_head / params.group;
        work.token = __shfl_sync(~0u, start, owner);
        work.tokens = __shfl_sync(~0u, tokens, owner);
        work.length = params.inputs.seq_lens[work.row];
        work.table = params.inputs.row_slot[work.row] * params.max_blocks;
        return work;
      }
      before += __shfl_sync(~0u, end, 31);
    }
    // Here at the latest: what comes behind this kernel relies on the one beside it, too. The block
    // that starts last does it for all, so that none keeps a multiprocessor from others.
    if (params.beside && blockIdx.x + 1 == gridDim.x) wait_for_predecessor();
    return {};
  }
};

// FlashInfer's epilogue, whose store() arrives at a barrier and then waits at the same one: the
// wait may end while another warp has not yet written its part of the tile, and what was in shared
// memory before goes out in its place. Here everyone arrives once.
template <class Traits>
struct TileEpilogue : flashinfer::CollectiveEpilogue<Traits> {
  using Base = flashinfer::CollectiveEpilogue<Traits>;

  template <class BlockCoord, class Storage, class Accumulators, class LogSums, class Mma>
  __device__ void store(const typename Base::Params& params, const Accumulators& sums,
                        const LogSums&, Storage& storage, Mma mma, int thread,
                        const BlockCoord& coord) {
    const auto [tile, q_head, kv_head, token, table, tokens, length, row] = coord;
    auto shared =
        cute::make_tensor(cute::make_smem_ptr(storage.smem_o.data()), typename Base::SmemLayoutO{});
    const auto copy = cute::make_tiled_copy_C(typename Base::SmemCopyAtomO{}, mma);
    const auto part = copy.get_thread_slice(thread);
    auto out = flashinfer::convert_type<typename Base::DTypeO>(sums);
    using cutlass::arch::NamedBarrier;
    // The tile lies where the values did: all have read them.
    NamedBarrier::sync(Base::NUM_MMA_THREADS,
                       static_cast<int>(flashinfer::NamedBarriers::kValueEmpty));
    cute::copy(copy, part.retile_S(out), part.partition_D(shared));
    NamedBarrier::sync(Base::NUM_MMA_THREADS,
                       cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    flashinfer::write_O<Base::NUM_COPY_THREADS>(
        params.O_ptr, typename Base::TiledCopyO{}, params.layout_O,
        cute::select<0, 1>(typename Base::TileShape_PDV{}), shared, thread, tile, q_head, token,
        tokens, /*write_warp_idx=*/0);
  }
};

struct ScoreScale {
  float sm_scale = 1;  // FlashInfer's name
};

// kTileQueries a multiple of 64: a warp group for each 64 queries, and one that copies.
template <int kDim, int kTileQueries, int kTileKeys>
struct FlashPrefill {
  using Element = cutlass::bfloat16_t;
  using Traits =
      flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/false, kDim, kDim, kTileQueries,
                                        kTileKeys, /*NUM_STAGES=*/2, Element, Element, Element,
                                        int32_t, flashinfer::StandardAttention>;
  using Mainloop = flashinfer::SparseCollectiveMainloop<ScoreScale, Traits, /*CAUSAL=*/true>;
  using Epilogue = TileEpilogue<Traits>;
  using Tiles = RowTiles<kTileQueries>;
  static constexpr auto kKernel =
      &flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits,
                                            /*LEFT_SLIDING_WINDOW=*/false, /*CAUSAL=*/true, Tiles>;
  static constexpr size_t kSharedBytes = sizeof(typename Traits::SharedStorage);
  // The output tile lies where the first stage of values does. Its refill for the next tile waits
  // for an arrival that the last warp of the last group makes after it has taken its first turn
  // there, and a group takes its turn only after all groups before it came to theirs: all warps
  // have read the output tile by then. Without turns, a slow warp could still be reading.
  static_assert(Mainloop::UseSchedulerBarrier);

  static void run(StreamRef stream, const AttentionArgs& args, int32_t short_tokens, bool beside) {
    const int64_t page = int64_t{args.block_size} * kDim, value_at = args.kv_heads * page;
    const auto* cache = static_cast<const Element*>(args.cache);
    const auto q =
        flashinfer::get_gmem_layout(args.tokens.padded, args.q_heads, kDim, args.q.stride, kDim);
    const auto kv = flashinfer::get_gmem_layout(0, args.kv_heads, kDim, kDim, page);
    const auto out =
        flashinfer::get_gmem_layout(args.tokens.padded, args.q_heads, kDim, args.out.stride, kDim);
    const typename Mainloop::Params mainloop = Mainloop::to_underlying_arguments(
        {static_cast<const Element*>(args.q.data), q, cache, kv, cache + value_at, kv,
         args.block_table, /*window_left=*/-1, 2 * value_at, 2 * value_at,
         static_cast<uint32_t>(args.block_size), ScoreScale{args.scale}});
    const typename Epilogue::Params epilogue = Epilogue::to_underlying_arguments(
        {static_cast<Element*>(args.out.data), out, /*lse_ptr=*/nullptr,
         flashinfer::get_lse_gmem_layout(args.tokens.padded, args.q_heads)});
    typename Tiles::Params tiles;
    tiles.inputs = args.inputs;
    tiles.reqs = args.reqs;
    tiles.short_tokens = short_tokens;
    tiles.q_heads = args.q_heads;
    tiles.group = args.q_heads / args.kv_heads;
    tiles.max_blocks = args.max_blocks;
    tiles.beside = beside;
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(launcher(stream).sm_count));
    shape.threads = Traits::NUM_THREADS;
    shape.shared_bytes = kSharedBytes;
    launch<kKernel, kSharedBytes>(stream, "attention", shape, mainloop, epilogue, tiles);
  }
};

}  // namespace refrain::kernels
