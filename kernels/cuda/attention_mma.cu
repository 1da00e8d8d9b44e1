// Attention on tensor cores over the paged cache, bfloat16. Two kernels share one inner loop:
//  decode   a request's few tokens times the query heads of a KV head are one tile of 16 queries;
//           the keys are split over a cluster of blocks and the blocks' four warps; bound by
//           memory. Many requests go to attention_stream.cu.
//  prefill  64 queries a block, 16 a warp, all keys; bound by arithmetic. Where
//           attention_flashinfer.cu can, it does this.
// A batch that is not a uniform decode gets both launches: each row belongs to one of them, and the
// blocks of FlashInfer's begin as those of the first leave their multiprocessors, so that it costs
// no start and end of its own. A prompt known to be alone needs the second only. With
// --batch-invariant all rows are the second's. Launch shapes depend on the counts that the launch
// is given, the key's in a graph and the batch's own outside; lengths are read on the device.
//
// H200, 32 query and 8 KV heads of 128, of 4543 GB/s: decode 76 % (32 requests of 1024), 43 % (8 of
// 1024); 8.0 us for one of 512. Prefill of 8192: 218 TFLOP/s.

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/clear_padding.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/invariant.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kPrefillWarps = 4;

template <int kDim>
using PrefillAttend = Attend<kDim, false, kPrefillWarps, 2>;

// The row and the first token of tile `tile`, tiles counted over the rows of more than
// `short_tokens` tokens. The first warp finds it; false: there is no such tile.
__device__ bool find_tile(const AttentionArgs& args, int32_t per_tile, int32_t short_tokens,
                          int32_t tile, int32_t& row_out, int32_t& in_row) {
  __shared__ int32_t found[2];
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  if (threadIdx.x < 32) {
    const int32_t reqs = live_rows(args.reqs), lane = static_cast<int32_t>(threadIdx.x);
    int32_t before = 0;
    for (int32_t first = 0; first < reqs && before <= tile; first += 32) {
      int32_t count = 0;
      if (first + lane < reqs) {
        const int32_t n =
            args.inputs.query_start[first + lane + 1] - args.inputs.query_start[first + lane];
        count = n <= short_tokens ? 0 : (n + per_tile - 1) / per_tile;
      }
      int32_t sum = count;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int32_t other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
      }
      const int32_t start = before + sum - count;
      if (start <= tile && tile < start + count) {
        found[0] = first + lane;
        found[1] = tile - start;
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  row_out = found[0];
  in_row = found[1];
  return found[0] >= 0;
}

// grid: KV heads times tiles at most; the heads of a tile follow each other.
template <int kDim>
__global__ void __launch_bounds__(kPrefillWarps * 32, 2)
    prefill_kernel(AttentionArgs args, int32_t short_tokens) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_successor_start();
  wait_for_predecessor();
  const int32_t group = args.q_heads / args.kv_heads,
                per_tile = PrefillAttend<kDim>::kQueries / group;
  int32_t row, in_row;
  const auto kv_heads = static_cast<uint32_t>(args.kv_heads);
  const auto place = static_cast<int32_t>(blockIdx.x / kv_heads);
  if (!find_tile(args, per_tile, short_tokens, place, row, in_row)) return;
  const int32_t first = args.inputs.query_start[row];
  const int32_t tokens = args.inputs.query_start[row + 1] - first;
  QueryTile tile;
  tile.token = first + in_row * per_tile;
  tile.tokens = min(per_tile, tokens - in_row * per_tile);
  tile.position = args.inputs.seq_lens[row] - tokens + in_row * per_tile;
  tile.kv_head = static_cast<int32_t>(blockIdx.x % kv_heads);
  tile.group = group;
  tile.blocks = args.block_table + int64_t{args.inputs.row_slot[row]} * args.max_blocks;
  PrefillAttend<kDim> attend{args, tile, visible_keys(args, tile), shared};
  attend.run();
  attend.write();
}

template <int kDim>
void launch_short(StreamRef stream, const AttentionArgs& args, bool beside, bool behind_prefix) {
  load_decode<kDim, AttentionArgs>("attention");
  load_attention_stream(args.head_dim);
  load_cascade_attention(stream, args);
  if (can_attend_stream(stream, args)) return attention_stream(stream, args, beside, behind_prefix);
  launch_decode<kDim>(stream, "attention", args, args, beside);
}

// Rows of more than `short_tokens` tokens.
template <int kDim>
void launch_prefill(StreamRef stream, const AttentionArgs& args, int32_t short_tokens) {
  LaunchShape prefill;
  const int64_t per_tile = PrefillAttend<kDim>::kQueries / (args.q_heads / args.kv_heads);
  const int64_t tiles = args.tokens.padded / per_tile + args.reqs.padded;
  prefill.grid = dim3(static_cast<unsigned>(args.kv_heads * tiles));
  prefill.threads = PrefillAttend<kDim>::kThreads;
  prefill.shared_bytes = PrefillAttend<kDim>::kSharedBytes;
  launch<&prefill_kernel<kDim>, PrefillAttend<kDim>::kSharedBytes>(stream, "attention", prefill,
                                                                   args, short_tokens);
}

template <int kDim>
void launch_mma(StreamRef stream, const AttentionArgs& args, bool flashinfer, bool behind_prefix) {
  const int32_t group = args.q_heads / args.kv_heads;
  const int32_t longest = args.uniform_query_len > 0 ? args.uniform_query_len : args.tokens.padded;
  const bool exact = args.tokens.live == nullptr && args.reqs.live == nullptr;
  const bool one_prompt = exact && args.reqs.padded == 1 && !is_short(longest, group);
  const bool beside = flashinfer && !one_prompt && !is_short(longest, group);
  if (!one_prompt) launch_short<kDim>(stream, args, beside, behind_prefix);
  if (is_short(longest, group)) return;  // so is every row
  if (flashinfer) return attention_flashinfer(stream, args, kWarpQueries / group, beside);
  launch_prefill<kDim>(stream, args, kWarpQueries / group);
}

}  // namespace

bool can_attend_mma(const AttentionArgs& args) {
  const bool bf16 = args.q.dtype == DType::kBFloat16 && args.out.dtype == DType::kBFloat16 &&
                    args.cache_dtype == DType::kBFloat16;
  const int32_t dim = args.head_dim;
  const bool size = dim == 32 || dim == 64 || dim == 80 || dim == 96 || dim == 128;
  return bf16 && size && args.q_heads / args.kv_heads <= PrefillAttend<32>::kQueries &&
         is_wide(args.cache);
}

void attention_mma(StreamRef stream, const AttentionArgs& args, bool flashinfer,
                   bool behind_prefix) {
  by_head_dim(args.head_dim, [&](auto dim) {
    launch_mma<decltype(dim)::value>(stream, args, flashinfer, behind_prefix);
  });
}

void invariant_attention_mma(StreamRef stream, const AttentionArgs& args) {
  launch_clear_padding(stream, args);
  by_head_dim(args.head_dim,
              [&](auto dim) { launch_prefill<decltype(dim)::value>(stream, args, 0); });
}

}  // namespace refrain::kernels
