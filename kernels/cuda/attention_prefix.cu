// Attention to a prefix that a plan's first rows share (cascade attention: Ye et al., 2024),
// bfloat16, by FlashInfer's FlashAttention-3 kernel: the queries of all these rows are one long
// prompt, which sees all keys. What comes out are parts in float32, as planned_attention.cu has
// them, which attention_stream.cu adds to each row's own keys. Bound by arithmetic.

#include "kernels/cuda/attention_flashinfer.cuh"
#include "kernels/cuda/attention_parts.cuh"

namespace refrain::kernels {
namespace {

// Tiles of kTileQueries tokens of one head against the keys of one part.
template <int kTileQueries>
struct PrefixTiles {
  struct Params {
    BatchInputs inputs;
    AttentionPlanArgs planned;
    int32_t q_heads = 0, group = 1, max_blocks = 0, block_size = 16;
  };

  // As RowTiles has it.
  struct WorkTileInfo {
    int tile = 0, q_head = 0, kv_head = 0, tokens = 0, table = 0, keys = 0, part = -1;
    __device__ bool is_valid(const Params&) const { return part >= 0; }
    __device__ auto get_block_coord(const Params&) const {
      return cute::tuple{tile, q_head, kv_head, /*first token*/ 0, table, tokens, keys, part};
    }
  };

  int32_t unit = 0;

  // All threads come here first.
  __device__ WorkTileInfo get_initial_work(const Params& params) {
    let_successor_start();
    wait_for_predecessor();
    return find(params, static_cast<int32_t>(blockIdx.x));
  }
  template <bool is_producer>
  __device__ WorkTileInfo get_next_work(const Params& params, const WorkTileInfo&) {
    return find(params, unit + static_cast<int32_t>(gridDim.x));
  }
  __device__ void init_consumer() const {}
  __device__ void prefetch_next_work(const Params&, const WorkTileInfo&) const {}
  __device__ void broadcast_next_work(const WorkTileInfo&) const {}

  __device__ WorkTileInfo find(const Params& params, int32_t wanted) {
    unit = wanted;
    const int32_t* plan = params.planned.plan;
    const int32_t parts = plan[kPlanPrefixParts];
    WorkTileInfo work;
    work.tokens = params.inputs.query_start[plan[kPlanSharedRows]];
    const int32_t of_tile = params.q_heads * parts;
    work.tile = unit / of_tile;
    if (work.tile * kTileQueries >= work.tokens) return work;
    work.part = unit % of_tile / params.q_heads;  // heads that read the same keys run together
    work.q_head = unit % params.q_heads;
    work.kv_head = work.q_head / params.group;
    const AttentionUnit& keys = unit_of(params.planned, plan[kPlanPrefixUnits] / parts * work.part);
    work.keys = keys.end - keys.begin;
    work.table = params.inputs.row_slot[0] * params.max_blocks + keys.begin / params.block_size;
    return work;
  }
};

// The sums of a query over the weights' total, which so is 1, and its log as the greatest score.
template <class Traits>
struct PartEpilogue : flashinfer::CollectiveEpilogue<Traits> {
  using Base = flashinfer::CollectiveEpilogue<Traits>;
  using Params = AttentionArgs;
  __device__ static void prefetch_tma_descriptors(const Params&) {}

  template <class BlockCoord, class Storage, class Accumulators, class LogSums, class Mma>
  __device__ void store(const Params& args, const Accumulators& sums, const LogSums& log_sums,
                        Storage&, Mma mma, int thread, const BlockCoord& coord) {
    const auto [tile, q_head, kv_head, token, table, tokens, keys, part] = coord;
    const auto place = mma.get_thread_slice(thread).partition_C(
        cute::make_identity_tensor(cute::select<0, 1>(typename Base::TileShape_PDV{})));
    const auto by_row = [](const auto& of) {
      return cute::make_tensor(of.data(), flashinfer::convert_layout_acc_rowcol(of.layout()));
    };
    const auto sum = by_row(sums);
    const auto at = by_row(place);
    constexpr int kDim = Base::HEAD_DIM_VO;
#pragma unroll
    for (int row = 0; row < cute::size<0>(sum); ++row) {
      const int query = tile * Base::CTA_Q + static_cast<int>(cute::get<0>(at(row, 0)));
      if (query >= tokens) continue;
      float* to = part_of(args, token + query, part, q_head);
#pragma unroll
      for (int col = 0; col < cute::size<1>(sum); col += 2) {
        *reinterpret_cast<float2*>(to + static_cast<int>(cute::get<1>(at(row, col)))) =
            make_float2(sum(row, col), sum(row, col + 1));
      }
      if (cute::get<1>(at(row, 0)) != 0) continue;
      to[kDim] = log_sums(row);
      to[kDim + 1] = 1.0f;
    }
  }
  template <class BlockCoord, class Storage>
  __device__ void store_zero(const Params&, Storage&, int, const BlockCoord&) const {
  }  // no part is empty
};

template <int kDim>
using PrefixKernel = FlashKernel<kDim, false, PartEpilogue, PrefixTiles>;

template <int kDim>
void run(StreamRef stream, const AttentionArgs& args) {
  typename PrefixKernel<kDim>::Tiles::Params tiles;
  tiles.inputs = args.inputs;
  tiles.planned = args.planned;
  tiles.q_heads = args.q_heads;
  tiles.group = args.q_heads / args.kv_heads;
  tiles.max_blocks = args.max_blocks;
  tiles.block_size = args.block_size;
  PrefixKernel<kDim>::launch_tiles(stream, args, args, tiles);
}

}  // namespace

bool can_attend_prefix(StreamRef stream, const AttentionArgs& args) {
  return can_attend_flashinfer(stream, args) && kPlanKeys % args.block_size == 0;
}

void attention_prefix(StreamRef stream, const AttentionArgs& args) {
  by_flash_head(args.head_dim, [&](auto dim) { run<decltype(dim)::value>(stream, args); });
}

void load_attention_prefix(int32_t head_dim) {
  by_flash_head(head_dim, [](auto dim) { PrefixKernel<decltype(dim)::value>::load(); });
}

}  // namespace refrain::kernels
