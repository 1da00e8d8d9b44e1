// Attention by a plan made on the host (kernels/core/attention_units.h): a block for each unit and
// KV head, then a launch that merges each token's parts by log-sum-exp, in their order. The launch
// shape follows from the counts that the launch is given (of a key in a graph); a block takes every
// so many units. Decode is bound by memory; a shared prefix, read once for the queries of all
// rows on tensor cores, by arithmetic. Of many decodes attention_prefix.cu reads the prefix and
// attention_stream.cu their own keys; prompts beside decodes that share a prefix go to
// attention_flashinfer.cu where it can take them. bfloat16 of the head sizes of attention_mma.cu;
// all else on plain cores, a warp for each query.

#include <algorithm>
#include <limits>

#include "kernels/core/attention_units.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 4, kStages = 3;
constexpr int kBlocks = 2;  // of a multiprocessor at once
template <int kDim>
using FewQueries = Attend<kDim, true, kWarps, kStages>;
template <int kDim>
using ManyQueries = Attend<kDim, false, kWarps, kStages>;

// What a unit reads: its row's blocks, its first token's position, its keys.
struct Work {
  const int32_t* blocks;
  int32_t position;
  KeySpan keys;
};

__device__ Work work_of(const AttentionArgs& args, const AttentionUnit& unit) {
  Work work;
  work.blocks = args.block_table + int64_t{args.inputs.row_slot[unit.row]} * args.max_blocks;
  work.position = unit.position;
  work.keys = {unit.begin, unit.end};
  if (unit.position < 0) {  // the device alone knows how long the row is
    work.position =
        args.inputs.seq_lens[unit.row] - (args.inputs.query_start[unit.row + 1] - unit.token);
    work.keys.end = work.position + unit.tokens;
  }
  if (args.sliding_window > 0)
    work.keys.begin = max(work.keys.begin, work.position - args.sliding_window + 1);
  work.keys.end = max(work.keys.begin, work.keys.end);
  return work;
}

template <int kDim>
__device__ void attend_few(const AttentionArgs& args, const AttentionUnit& unit,
                           const QueryTile& tile, KeySpan keys, uint8_t* shared) {
  FewQueries<kDim> attend{args, tile, keys, shared};
  attend.run();
  attend.merge_warps();
  const float* sums = attend.partial(kWarps);
  for (int e = static_cast<int>(threadIdx.x); e < tile.queries() * kDim; e += kWarps * 32) {
    const int query = e / kDim, col = e % kDim;
    const float high = sums[kWarpQueries * kDim + query];
    const float total = sums[kWarpQueries * (kDim + 1) + query];
    if (unit.part < 0) {
      attend.store(query, col, sums[e] / total);
      continue;
    }
    float* part = part_of(args, tile.token + query / tile.group, unit.part,
                          tile.kv_head * tile.group + query % tile.group);
    part[col] = sums[e];
    if (col == 0) {
      part[kDim] = high;
      part[kDim + 1] = total;
    }
  }
}

template <int kDim>
__device__ void attend_many(const AttentionArgs& args, const AttentionUnit& unit,
                            const QueryTile& tile, KeySpan keys, uint8_t* shared) {
  using A = ManyQueries<kDim>;
  A attend{args, tile, keys, shared};
  attend.run();
  if (unit.part < 0) return attend.write();
  const int lane = A::lane();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = A::first_query() + lane / 4 + half * 8;
    if (query >= tile.queries()) continue;
    float* part = part_of(args, tile.token + query / tile.group, unit.part,
                          tile.kv_head * tile.group + query % tile.group);
#pragma unroll
    for (int d = 0; d < A::kDimTiles; ++d) {
      part[d * 8 + lane % 4 * 2] = attend.acc[d][half * 2];
      part[d * 8 + lane % 4 * 2 + 1] = attend.acc[d][half * 2 + 1];
    }
    if (lane % 4 == 0) {
      part[kDim] = attend.highest[half];
      part[kDim + 1] = attend.sum[half];
    }
  }
}

template <int kDim>
constexpr size_t kSharedBytes = FewQueries<kDim>::kSharedBytes > ManyQueries<kDim>::kSharedBytes
                                    ? FewQueries<kDim>::kSharedBytes
                                    : ManyQueries<kDim>::kSharedBytes;

// grid: KV heads, units. Rows of more than `most_tokens` tokens are left out.
template <int kDim>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    planned_kernel(AttentionArgs args, int32_t most_tokens) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_successor_start();
  wait_for_predecessor();
  const int32_t units = args.planned.plan[0];
  for (auto u = static_cast<int32_t>(blockIdx.y); u < units; u += static_cast<int32_t>(gridDim.y)) {
    const AttentionUnit unit = unit_of(args.planned, u);
    if (unit.row_tokens > most_tokens) continue;
    const Work work = work_of(args, unit);
    QueryTile tile;
    tile.token = unit.token;
    tile.tokens = unit.tokens;
    tile.position = work.position;
    tile.kv_head = static_cast<int32_t>(blockIdx.x);
    tile.group = args.q_heads / args.kv_heads;
    tile.blocks = work.blocks;
    if (tile.queries() <= kWarpQueries) {
      attend_few<kDim>(args, unit, tile, work.keys, shared);
    } else {
      attend_many<kDim>(args, unit, tile, work.keys, shared);
    }
    __syncthreads();  // the next unit's keys lie where these sums do
  }
}

// Any type and head size. grid: query heads, units; a warp a token.
__global__ void __launch_bounds__(kWarps * 32) planned_simple_kernel(AttentionArgs args) {
  __shared__ float q[kWarps][kMaxHeadDim];
  let_successor_start();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto head = static_cast<int32_t>(blockIdx.x);
  const int32_t kv_head = head / (args.q_heads / args.kv_heads), dim = args.head_dim;
  constexpr int kCols = (kMaxHeadDim + 31) / 32;
  for (auto u = static_cast<int32_t>(blockIdx.y); u < args.planned.plan[0];
       u += static_cast<int32_t>(gridDim.y)) {
    const AttentionUnit unit = unit_of(args.planned, u);
    const Work work = work_of(args, unit);
    for (int32_t i = warp; i < unit.tokens; i += kWarps) {
      const int32_t token = unit.token + i, position = work.position + i;
      for (int32_t d = lane; d < dim; d += 32)
        q[warp][d] = args.scale * load_element(args.q.data, args.q.dtype,
                                               token * args.q.stride + int64_t{head} * dim + d);
      __syncwarp();
      int32_t begin = work.keys.begin;
      if (args.sliding_window > 0) begin = max(begin, position - args.sliding_window + 1);
      const int32_t end = min(work.keys.end, position + 1);
      float acc[kCols] = {}, highest = -INFINITY, total = 0;
      for (int32_t key = begin; key < end; ++key) {
        const int64_t block = work.blocks[key / args.block_size];
        const int64_t row =
            (block * 2 * args.kv_heads + kv_head) * args.block_size + key % args.block_size;
        const int64_t value = row + int64_t{args.kv_heads} * args.block_size;
        float score = 0;
        for (int32_t d = lane; d < dim; d += 32)
          score += q[warp][d] * load_element(args.cache, args.cache_dtype, row * dim + d);
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) score += __shfl_xor_sync(~0u, score, offset);
        const float top = fmaxf(highest, score * kLog2E);
        const float shrink = exp2f(highest - top), weight = exp2f(score * kLog2E - top);
        highest = top;
        total = total * shrink + weight;
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
          const int32_t d = lane + 32 * c;
          if (d < dim)
            acc[c] = acc[c] * shrink +
                     weight * load_element(args.cache, args.cache_dtype, value * dim + d);
        }
      }
      float* part = unit.part < 0 ? nullptr : part_of(args, token, unit.part, head);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const int32_t d = lane + 32 * c;
        if (d >= dim) continue;
        if (part != nullptr) {
          part[d] = acc[c];
        } else {
          store_element(args.out.data, args.out.dtype,
                        token * args.out.stride + int64_t{head} * dim + d, acc[c] / total);
        }
      }
      if (part != nullptr && lane == 0) {
        part[dim] = highest;
        part[dim + 1] = total;
      }
      __syncwarp();
    }
  }
}

// grid: query heads by kWarps, tokens; a warp a token and head. Padded tokens become zeros.
__global__ void __launch_bounds__(kWarps * 32) merge_parts_kernel(AttentionArgs args) {
  let_successor_start();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto head =
      static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
  if (head >= args.q_heads) return;
  const int32_t live = live_rows(args.tokens), dim = args.head_dim;
  for (auto token = static_cast<int32_t>(blockIdx.y); token < args.tokens.padded;
       token += static_cast<int32_t>(gridDim.y)) {
    const int64_t out = token * args.out.stride + int64_t{head} * dim;
    if (token >= live) {
      for (int32_t d = lane; d < dim; d += 32)
        store_element(args.out.data, args.out.dtype, out + d, 0.0f);
      continue;
    }
    const int32_t* start = args.planned.plan + kPlanHeader + token;
    const int32_t count = start[1] - start[0];
    if (count == 0) continue;
    const float* first = part_of(args, token, 0, head);
    const int64_t step = int64_t{args.q_heads} * (dim + 2);
    float weight[kMaxPlanParts], top = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < kMaxPlanParts; ++i) {
      weight[i] = i < count ? first[i * step + dim] : -INFINITY;
      top = fmaxf(top, weight[i]);
    }
#pragma unroll
    for (int i = 0; i < kMaxPlanParts; ++i) {
      weight[i] = weight[i] == -INFINITY ? 0.0f : exp2f(weight[i] - top);
      if (i < count) total += weight[i] * first[i * step + dim + 1];
    }
    for (int32_t d = lane; d < dim; d += 32) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kMaxPlanParts; ++i)
        if (i < count) sum += weight[i] * first[i * step + d];
      store_element(args.out.data, args.out.dtype, out + d, sum / total);
    }
  }
}

// Blocks without a unit cost their start, which is more than the work of some: so many that rows
// are not split, or that the device is full; blocks with several units take them in turns.
unsigned unit_blocks(StreamRef stream, const AttentionArgs& args, int32_t heads) {
  constexpr int32_t kRounds = 4;
  const int32_t full = kRounds * kBlocks * launcher(stream).sm_count / heads;
  const int32_t usual = args.planned.shape.usual_units(args.tokens.padded, args.reqs.padded);
  return grid_y(std::min(args.planned.max_units, std::max(full, usual)));
}

template <int kDim>
void launch_planned(StreamRef stream, const AttentionArgs& args, int32_t most_tokens) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.kv_heads), unit_blocks(stream, args, args.kv_heads));
  shape.threads = kWarps * 32;
  shape.shared_bytes = kSharedBytes<kDim>;
  launch<&planned_kernel<kDim>, kSharedBytes<kDim>>(stream, "attention", shape, args, most_tokens);
}

// Of rows of at most `most_tokens` tokens, where tensor cores do it; else of all rows.
void launch_units(StreamRef stream, const AttentionArgs& args, int32_t most_tokens) {
  if (can_attend_mma(args)) {
    return by_head_dim(args.head_dim, [&](auto dim) {
      launch_planned<decltype(dim)::value>(stream, args, most_tokens);
    });
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.q_heads), unit_blocks(stream, args, args.q_heads));
  shape.threads = kWarps * 32;
  launch<&planned_simple_kernel>(stream, "attention", shape, args);
}

void launch_merge(StreamRef stream, const AttentionArgs& args) {
  LaunchShape merge;
  merge.grid =
      dim3(static_cast<unsigned>(ceil_div(args.q_heads, kWarps)), grid_y(args.tokens.padded));
  merge.threads = kWarps * 32;
  launch<&merge_parts_kernel>(stream, "merge_attention_parts", merge, args);
}

}  // namespace

void planned_attention(StreamRef stream, const AttentionArgs& args) {
  launch_units(stream, args, std::numeric_limits<int32_t>::max());
  launch_merge(stream, args);
}

void load_cascade_attention(StreamRef stream, const AttentionArgs& args) {
  by_head_dim(args.head_dim, [](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    load_kernel<&planned_kernel<kDim>, kSharedBytes<kDim>>("attention");
  });
  load_kernel<&merge_parts_kernel>("merge_attention_parts");
  if (can_attend_flashinfer(stream, args)) load_attention_prefix(args.head_dim);
}

void cascade_attention(StreamRef stream, const AttentionArgs& args) {
  const int32_t stream_tokens = kWarpQueries / (args.q_heads / args.kv_heads);
  // Of a row that may be split.
  const int32_t few = std::max(stream_tokens, args.planned.shape.split_tokens);
  if (few == stream_tokens && can_attend_mma(args) && can_attend_stream(stream, args) &&
      can_attend_prefix(stream, args)) {
    attention_prefix(stream, args);
    return attention_mma(stream, args, /*flashinfer=*/true, /*behind_prefix=*/true);
  }
  const int32_t longest = args.uniform_query_len > 0 ? args.uniform_query_len : args.tokens.padded;
  if (longest <= few || !can_attend_mma(args) || !can_attend_flashinfer(stream, args))
    return planned_attention(stream, args);
  launch_units(stream, args, few);
  launch_merge(stream, args);
  attention_flashinfer(stream, args, few, /*beside=*/false);
}

}  // namespace refrain::kernels
