// Attention for any element type and head size: one warp a token and query head, online softmax
// over 32 keys at a time, a lane a key for the scores and a lane a column for the values. The check
// of the faster kernel and the path of float32; bound by instructions, its speed not measured.

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/invariant.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kCols = kMaxHeadDim / 32;  // columns a lane

// The row of the cache that holds position `position` of a request, for keys (0) or values (1).
__device__ int64_t cache_row(const AttentionArgs& args, const int32_t* blocks, int32_t position,
                             int32_t kv_head, int value) {
  const int64_t block = blocks[position / args.block_size];
  return ((block * 2 + value) * args.kv_heads + kv_head) * args.block_size +
         position % args.block_size;
}

__device__ void attend(const AttentionArgs& args, const float* q, int64_t token, int32_t head,
                       const int32_t* blocks, int32_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t dim = args.head_dim, kv_head = head / (args.q_heads / args.kv_heads);
  const int32_t first = args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
  float acc[kCols] = {}, highest = -INFINITY, total = 0;
  for (int32_t chunk = first; chunk <= position; chunk += 32) {
    const int32_t count = min(32, position + 1 - chunk);
    float score = -INFINITY;
    if (lane < count) {
      const int64_t row = cache_row(args, blocks, chunk + lane, kv_head, 0) * dim;
      score = 0;
      for (int32_t d = 0; d < dim; ++d) {
        score = fmaf(q[d], load_element(args.cache, args.cache_dtype, row + d), score);
      }
    }
    float top = score;
    for (int offset = 16; offset > 0; offset /= 2) {
      top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
    }
    top = fmaxf(top, highest);
    const float shrink = expf(highest - top), weight = lane < count ? expf(score - top) : 0.0f;
    highest = top;
    total = total * shrink + warp_sum(weight);
#pragma unroll
    for (int j = 0; j < kCols; ++j) acc[j] *= shrink;
    for (int i = 0; i < count; ++i) {
      const float w = __shfl_sync(~0u, weight, i);
      const int64_t row = cache_row(args, blocks, chunk + i, kv_head, 1) * dim;
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const int d = lane + 32 * j;
        if (d < dim) acc[j] = fmaf(w, load_element(args.cache, args.cache_dtype, row + d), acc[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
    const int d = lane + 32 * j;
    if (d < dim) {
      store_element(args.out.data, args.out.dtype,
                    token * args.out.stride + int64_t{head} * dim + d, acc[j] / total);
    }
  }
}

// By a warp; `q` is its own, in shared memory.
__device__ void attend_token(const AttentionArgs& args, float* q, int32_t token, int32_t head) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= live_rows(args.tokens)) {
    for (int32_t d = lane; d < args.head_dim; d += 32) {
      store_element(args.out.data, args.out.dtype,
                    token * args.out.stride + int64_t{head} * args.head_dim + d, 0.0f);
    }
    return;
  }
  int32_t low = 0, high = live_rows(args.reqs) - 1;  // the last row that starts at or before it
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (args.inputs.query_start[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int32_t position = args.inputs.seq_lens[low] - (args.inputs.query_start[low + 1] - token);
  for (int32_t d = lane; d < args.head_dim; d += 32) {
    q[d] = args.scale * load_element(args.q.data, args.q.dtype,
                                     token * args.q.stride + int64_t{head} * args.head_dim + d);
  }
  __syncwarp();
  attend(args, q, token, head,
         args.block_table + int64_t{args.inputs.row_slot[low]} * args.max_blocks, position);
  __syncwarp();
}

__global__ void __launch_bounds__(kWarps * 32) attention_simple_kernel(AttentionArgs args) {
  __shared__ float q[kWarps][kMaxHeadDim];
  let_successor_start();
  wait_for_predecessor();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t head = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  if (head >= args.q_heads) return;
#pragma unroll 1
  for (auto token = static_cast<int32_t>(blockIdx.y); token < args.tokens.padded;
       token += static_cast<int32_t>(gridDim.y)) {
    attend_token(args, q[warp], token, head);
  }
}

}  // namespace

void attention_simple(StreamRef stream, const AttentionArgs& args) {
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(ceil_div(args.q_heads, kWarps)), grid_y(args.tokens.padded));
  shape.threads = kWarps * 32;
  launch<&attention_simple_kernel>(stream, "attention", shape, args);
}

void attention(StreamRef stream, const AttentionArgs& args) {
  if (can_attend_mma(args)) {
    attention_mma(stream, args, can_attend_flashinfer(stream, args), /*behind_prefix=*/false);
  } else {
    attention_simple(stream, args);
  }
}

void plain_attention(StreamRef stream, const AttentionArgs& args) {
  if (can_attend_mma(args)) {
    attention_mma(stream, args, /*flashinfer=*/false, /*behind_prefix=*/false);
  } else {
    attention_simple(stream, args);
  }
}

void invariant_attention(StreamRef stream, const AttentionArgs& args) {
  if (can_attend_mma(args)) {
    invariant_attention_mma(stream, args);
  } else {
    attention_simple(stream, args);
  }
}

}  // namespace refrain::kernels
