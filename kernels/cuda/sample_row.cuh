#pragma once
// What the kernels of sample.cu and sample_greedy.cu know of a row: which kernel it belongs to, and
// its logits.

#include <cstdint>

#include "kernels/core/sample_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sample_select.cuh"

namespace refrain::kernels {

__device__ inline bool row_samples(const SampleArgs& args, int64_t row) {
  return row < live_rows(args.rows) && (args.inputs.row_flags[row] & kRowSamples) != 0;
}

// Read before the wait for the previous kernel: prepare_inputs wrote it, and a linear, which ends
// after all before it, stands between.
__device__ inline bool is_greedy_row(const SampleArgs& args, int64_t row) {
  return row_samples(args, row) && is_plain_greedy(args.slots.params[args.inputs.row_slot[row]]);
}

// Calls four(token, float4) or one(token, logit) for tokens [begin, end) of a row, by all of
// `threads` threads, each in ascending order.
template <class Four, class One>
__device__ void for_each_logit(const SampleArgs& args, int64_t row, int64_t begin, int64_t end,
                               int threads, Four four, One one) {
  constexpr int kBatch = 8;  // loads under way together
  for (int64_t shard = begin / args.shard_cols; shard < args.shards; ++shard) {
    const int64_t first = shard * args.shard_cols;
    if (first >= end) break;
    const int64_t from = first > begin ? first : begin;
    const int64_t to = first + args.shard_cols < end ? first + args.shard_cols : end;
    const float* p = args.logits + shard * args.shard_stride + row * args.shard_cols - first;
    int64_t t = from;
    if (reinterpret_cast<uintptr_t>(p + from) % 16 == 0) {
      const int64_t whole = from + (to - from) / 4 * 4;
      for (t += threadIdx.x * 4; t < whole; t += kBatch * threads * 4) {
        float4 x[kBatch];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int64_t at = t + u * threads * 4;
          if (at < whole) x[u] = *reinterpret_cast<const float4*>(p + at);
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int64_t at = t + u * threads * 4;
          if (at < whole) four(static_cast<int32_t>(at), x[u]);
        }
      }
      t = whole;
    }
    for (t += threadIdx.x; t < to; t += threads) one(static_cast<int32_t>(t), p[t]);
  }
}

template <class F>
__device__ void for_each_logit(const SampleArgs& args, int64_t row, int64_t begin, int64_t end,
                               int threads, F f) {
  const auto four = [&](int32_t i, const float4& x) {
    f(i, x.x), f(i + 1, x.y), f(i + 2, x.z), f(i + 3, x.w);
  };
  for_each_logit(args, row, begin, end, threads, four, f);
}

// Where this turn's outputs go, in pinned memory. The turn, too, was written by prepare_inputs.
__device__ inline SampleOutputs outputs_of_turn(const SampleArgs& args, uint32_t turn) {
  static_assert(kTurns == 2);
  return turn % 2 == 0 ? args.outputs[0] : args.outputs[1];
}

__device__ inline void clear_top(const SampleOutputs& out, int64_t row) {
  if (threadIdx.x < kMaxLogprobs) {
    out.top_tokens[row * kMaxLogprobs + threadIdx.x] = -1;
    out.top_logprobs[row * kMaxLogprobs + threadIdx.x] = 0;
  }
}

}  // namespace refrain::kernels
