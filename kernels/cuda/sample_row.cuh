#pragma once
// What the kernels of sample.cu and sample_greedy.cu know of a row: which kernel it belongs to, its
// logits, and their order.

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace refrain::kernels {

using Sum = unsigned long long;

constexpr float kGreedyTemperature = 1e-5f;  // at or below: greedy

// Unsigned order of keys = order of logits; 0 is NaN.
__device__ inline uint32_t key_of(float logit) {
  if (isnan(logit)) return 0;
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kLowestKey = 0x00800000u;  // of -FLT_MAX: what is below weighs nothing

// (key, token) as one number: higher logits, then lower tokens, are greater.
__device__ inline Sum ranked(uint32_t key, int32_t token) {
  return Sum{key} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
__device__ inline int32_t token_of(Sum ranked) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(ranked));
}

// Whether the row's token is that of the greatest logit, and nothing else is asked.
__device__ inline bool is_plain_greedy(const SlotParams& params) {
  return params.temperature <= kGreedyTemperature && params.num_logprobs < 0 &&
         params.has_allowed_mask == 0 && params.num_logit_bias == 0 && params.uses_history == 0;
}

__device__ inline bool row_samples(const SampleArgs& args, int64_t row) {
  return row < live_rows(args.rows) && (args.inputs.row_flags[row] & kRowSamples) != 0;
}

// Read before the wait for the previous kernel: prepare_inputs wrote it, and a linear, which ends
// after all before it, stands between.
__device__ inline bool is_greedy_row(const SampleArgs& args, int64_t row) {
  return row_samples(args, row) && is_plain_greedy(args.slots.params[args.inputs.row_slot[row]]);
}

// Calls f(token, logit) for tokens [begin, end) of a row, by all of `threads` threads.
template <class F>
__device__ void for_each_logit(const SampleArgs& args, int64_t row, int64_t begin, int64_t end,
                               int threads, F f) {
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
          const auto i = static_cast<int32_t>(at);
          if (at < whole) f(i, x[u].x), f(i + 1, x[u].y), f(i + 2, x[u].z), f(i + 3, x[u].w);
        }
      }
      t = whole;
    }
    for (t += threadIdx.x; t < to; t += threads) f(static_cast<int32_t>(t), p[t]);
  }
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
