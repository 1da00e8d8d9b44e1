// Prefill attention, bfloat16, by FlashInfer's FlashAttention-3 kernel: 128 queries a block (192 of
// 64-wide heads), wgmma, keys and values through cp.async; bound by arithmetic. One block a
// multiprocessor, whatever the batch. H200, 32/8 heads of 128: 134 TFLOP/s at 512 tokens, 381 at
// 2048, 496 at 8192; 7.9 us for 64 tokens, the decode kernel's launch included.

#include "kernels/cuda/attention_flashinfer.cuh"
#include "kernels/cuda/prefill_order.h"

namespace refrain::kernels {
namespace {

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

template <int kDim>
void run(StreamRef stream, const AttentionArgs& args, int32_t short_tokens, bool beside) {
  using Kernel = FlashKernel<kDim, true, TileEpilogue, RowTiles>;
  // The output tile lies where the first stage of values does. Its refill for the next tile waits
  // for an arrival that the last warp of the last group makes after it has taken its first turn
  // there, and a group takes its turn only after all groups before it came to theirs: all warps
  // have read the output tile by then. Without turns, a slow warp could still be reading.
  static_assert(Kernel::Mainloop::UseSchedulerBarrier);
  const auto out =
      flashinfer::get_gmem_layout(args.tokens.padded, args.q_heads, kDim, args.out.stride, kDim);
  const auto epilogue = Kernel::Epilogue::to_underlying_arguments(
      {static_cast<typename Kernel::Element*>(args.out.data), out, /*lse_ptr=*/nullptr,
       flashinfer::get_lse_gmem_layout(args.tokens.padded, args.q_heads)});
  typename Kernel::Tiles::Params tiles;
  tiles.inputs = args.inputs;
  tiles.reqs = args.reqs;
  tiles.short_tokens = short_tokens;
  tiles.q_heads = args.q_heads;
  tiles.group = args.q_heads / args.kv_heads;
  tiles.max_blocks = args.max_blocks;
  tiles.beside = beside;
  Kernel::launch_tiles(stream, args, epilogue, tiles);
}

}  // namespace

bool can_attend_flashinfer(StreamRef stream, const AttentionArgs& args) {
  return launcher(stream).hopper && is_flash_head(args.head_dim) && args.sliding_window == 0 &&
         rows_are_wide(args.q) && rows_are_wide(args.out);
}

void attention_flashinfer(StreamRef stream, const AttentionArgs& args, int32_t short_tokens,
                          bool beside) {
  by_flash_head(args.head_dim,
                [&](auto dim) { run<decltype(dim)::value>(stream, args, short_tokens, beside); });
}

}  // namespace refrain::kernels
