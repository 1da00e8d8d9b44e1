// sample: a cluster of blocks a row, its processed logits in shared memory. Greedy rows read their
// logits once (latency bound: one round trip and one reduction). Filters do not sort: top-k, top-p
// and the draw are searches for a logit, seven thresholds a pass, over integer weights whose sums
// no order changes. Same order as on the host: all tokens ascending when no filter is on, else the
// most likely first, ties by token.
//
// H200, 128256 tokens: greedy 6.2 us for one row, 35 us for 128 (sample_greedy.cu); top-p 225 us
// for one, 2.1 ms for 128.

#include <cuda_runtime.h>

#include "kernels/cuda/cluster_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace refrain::kernels {
namespace {

constexpr float kWeightScale = 0x1.0p44f;  // of the most likely token; 2^18 of them fit a Sum

__device__ Sum weight_of(float logit, float highest, float scale) {
  const float x = (logit - highest) * scale;
  return x > -87.0f ? static_cast<Sum>(expf(x) * kWeightScale) : 0;
}

// One row: what all threads of the cluster know of it.
struct Sampler {
  const SampleArgs& args;
  const SampleOutputs& out;
  const SlotParams& params;
  int64_t row;
  int64_t slot;
  ClusterRow cluster;
  float* logits;  // shared, [cluster.count]

  template <class F>
  __device__ void for_each_token(F f) const {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < cluster.count; i += kRowThreads) f(i);
  }

  // Calls f(local token, logit) for this block's tokens, straight from the shards.
  template <class F>
  __device__ void for_each_raw(F f) const {
    for_each_logit(args, row, cluster.begin, int64_t{cluster.begin} + cluster.count, kRowThreads,
                   [&](int32_t token, float x) { f(token - cluster.begin, x); });
  }

  // Mask, bias, repetition, frequency and presence penalties: kernels/host/sampling.cpp.
  __device__ void process() {
    const int64_t vocab = args.vocab_size;
    const uint32_t* mask = args.slots.allowed_mask + slot * ((vocab + 31) / 32);
    for_each_raw([&](int32_t i, float x) {
      const int32_t token = cluster.begin + i;
      const bool allowed =
          params.has_allowed_mask == 0 || (mask[token / 32] >> (token % 32) & 1u) != 0;
      logits[i] = allowed ? x : -INFINITY;
    });
    __syncthreads();
    if (threadIdx.x == 0) {  // a token may be listed twice
      for (int32_t i = 0; i < params.num_logit_bias; ++i) {
        const int32_t at = args.slots.bias_token[slot * kMaxLogitBias + i] - cluster.begin;
        if (at >= 0 && at < cluster.count) {
          logits[at] += args.slots.bias_value[slot * kMaxLogitBias + i];
        }
      }
    }
    __syncthreads();
    if (params.uses_history == 0 || args.slots.output_count == nullptr) return;
    for_each_token([&](int32_t i) {
      const int64_t at = slot * vocab + cluster.begin + i;
      const int32_t output = args.slots.output_count[at];
      if (output == 0 && args.slots.in_prompt[at] == 0) return;
      float x = logits[i];
      // __fmul_rn: a fused product and sum would round differently from the host's.
      x = x > 0 ? x / params.repetition_penalty : __fmul_rn(x, params.repetition_penalty);
      if (output != 0) {
        x -= __fmul_rn(params.frequency_penalty, static_cast<float>(output));
        x -= params.presence_penalty;
      }
      logits[i] = x;
    });
    __syncthreads();
  }

  // The best token that ranks below `than`; 0: none.
  __device__ Sum best_below(Sum than) {
    Sum best = 0;
    for_each_token([&](int32_t i) {
      const uint32_t key = key_of(logits[i]);
      const Sum here = ranked(key, cluster.begin + i);
      if (key != 0 && here < than && here > best) best = here;
    });
    return cluster.max(best);
  }

  __device__ Sum total(float highest, float scale) {
    Sum mine = 0;
    for_each_token([&](int32_t i) { mine += weight_of(logits[i], highest, scale); });
    return cluster.sum(mine);
  }

  // The greatest key of [low, high] whose tokens and those above it sum to at least `needed`; `low`
  // if none does. `weight(i)` is that of local token i. `above`: the sum strictly above the key.
  template <class Weight>
  __device__ uint32_t search(uint32_t low, uint32_t high, Sum needed, Sum& above, Weight weight) {
    uint64_t from = low, past = uint64_t{high} + 1;  // the answer lies in [from, past)
    above = 0;
    while (past - from > 1) {
      const uint64_t step = (past - from + kRowWays) / (kRowWays + 1);
      Sum sums[kRowWays] = {};
      for_each_token([&](int32_t i) {
        const uint64_t key = key_of(logits[i]);
        if (key < from + step) return;
        const Sum w = weight(i);
#pragma unroll
        for (int t = 0; t < kRowWays; ++t) sums[t] += key >= from + step * (t + 1) ? w : 0;
      });
      cluster.reduce(sums);
      const uint64_t start = from;
      uint64_t end = past;
#pragma unroll
      for (int t = 0; t < kRowWays; ++t) {
        const uint64_t at = start + step * (t + 1);
        if (at >= past) continue;
        if (sums[t] >= needed) {
          from = at;
        } else if (at < end) {
          end = at;
          above = sums[t];
        }
      }
      past = end;
    }
    return static_cast<uint32_t>(from);
  }

  __device__ int32_t draw(float highest);
  __device__ void write_logprobs(Sum best, int32_t token);
  __device__ int32_t run();
};

__device__ int32_t Sampler::draw(float highest) {
  const float scale = 1.0f / params.temperature;
  const double uniform =
      uniform_draw(params.seed, static_cast<uint64_t>(args.inputs.seq_lens[row]));
  const auto weight = [&](int32_t i) { return weight_of(logits[i], highest, scale); };
  const auto target_of = [uniform](Sum all) {
    const auto target = static_cast<Sum>(uniform * static_cast<double>(all));
    return target < all ? target : all - 1;
  };
  if (params.top_k <= 0 && params.top_p >= 1.0f && params.min_p <= 0.0f) {
    return cluster.find_in_order(target_of(total(highest, scale)), weight);
  }
  const uint32_t top = key_of(highest);
  uint32_t least = kLowestKey;
  if (params.min_p > 0.0f) {
    least =
        max(least, min(top, key_of(highest + __fmul_rn(params.temperature, logf(params.min_p)))));
  }
  Sum above = 0;
  if (params.top_k > 0 && params.top_k < args.vocab_size) {
    least = search(least, top, static_cast<Sum>(params.top_k), above, [](int32_t) { return 1; });
  }
  // Tokens tied at `least` that stay: all of them, unless top-p cuts among them.
  Sum kept = 0, ties = ~Sum{0};
  {
    Sum mine = 0;
    for_each_token([&](int32_t i) { mine += key_of(logits[i]) >= least ? weight(i) : 0; });
    kept = cluster.sum(mine);
  }
  const auto weight_at = [&](uint32_t key) {
    const Sum w = weight_of(logit_of(key), highest, scale);
    return w > 0 ? w : 1;
  };
  if (params.top_p < 1.0f) {
    const auto needed =
        static_cast<Sum>(static_cast<double>(params.top_p) * static_cast<double>(kept));
    least = search(least, top, needed > 0 ? needed : 1, above, weight);
    const Sum each = weight_at(least);
    const Sum missing = (needed > 0 ? needed : 1) - min(above, needed > 0 ? needed : 1);
    const Sum tied = cluster.sum([&] {
      Sum n = 0;
      for_each_token([&](int32_t i) { n += key_of(logits[i]) == least ? 1 : 0; });
      return n;
    }());
    ties = min(tied, (missing + each - 1) / each);
    ties = ties > 0 ? ties : 1;
    kept = above + ties * each;
  }
  const Sum target = target_of(kept);
  const uint32_t key = search(least, top, target + 1, above, weight);
  Sum place = (target - min(above, target)) / weight_at(key);
  if (key == least && place >= ties) place = ties - 1;
  return cluster.find_in_order(
      place, [&](int32_t i) { return key_of(logits[i]) == key ? Sum{1} : Sum{0}; });
}

__device__ void Sampler::write_logprobs(Sum best, int32_t token) {
  const float highest = logit_of(static_cast<uint32_t>(best >> 32));
  const double sum = static_cast<double>(total(highest, 1.0f)) / kWeightScale;
  const auto log_sum = static_cast<float>(highest + log(sum));
  const int32_t at = token - cluster.begin;
  if (at >= 0 && at < cluster.count && threadIdx.x == 0) {
    out.logprobs[row] = logits[at] - log_sum;
  }
  const int32_t n = min(min(params.num_logprobs, kMaxLogprobs), args.vocab_size);
  for (int32_t i = 0; i < n; ++i) {
    if (cluster.rank() == 0 && threadIdx.x == 0) {
      out.top_tokens[row * kMaxLogprobs + i] = best == 0 ? -1 : token_of(best);
      out.top_logprobs[row * kMaxLogprobs + i] =
          best == 0 ? -INFINITY : logit_of(static_cast<uint32_t>(best >> 32)) - log_sum;
    }
    if (best != 0) best = best_below(best);
  }
}

// The sampled token; -1 where no logit is a number above -inf.
__device__ int32_t Sampler::run() {
  const bool greedy = params.temperature <= kGreedyTemperature;
  Sum best = 0;
  if (is_plain_greedy(params)) {
    for_each_raw([&](int32_t i, float x) {
      const Sum here = ranked(key_of(x), cluster.begin + i);
      best = here > best ? here : best;
    });
    best = cluster.max(best);
  } else {
    process();
    best = best_below(~Sum{0});
  }
  if (best >> 32 < kLowestKey) return -1;
  int32_t token = token_of(best);
  if (!greedy) token = draw(logit_of(static_cast<uint32_t>(best >> 32)));
  if (params.num_logprobs >= 0) write_logprobs(best, token);
  return token;
}

// By a whole cluster.
__device__ void sample_row(const SampleArgs& args, const SampleOutputs& out, int64_t row,
                           int32_t slice, RowShared& shared, float* logits) {
  const bool first = blockIdx.x == 0;
  const bool samples = row_samples(args, row);
  if (first) clear_top(out, row);
  const int64_t slot = samples ? args.inputs.row_slot[row] : 0;
  if (first && threadIdx.x == 0 && (!samples || args.slots.params[slot].num_logprobs < 0)) {
    out.logprobs[row] = 0;
  }
  if (!samples) {
    if (first && threadIdx.x == 0) out.tokens[row] = -1;
    return;
  }
  Sampler sampler{args, out, args.slots.params[slot], row, slot, {&shared}, logits};
  sampler.cluster.begin = min(args.vocab_size, static_cast<int32_t>(blockIdx.x) * slice);
  sampler.cluster.count = min(slice, args.vocab_size - sampler.cluster.begin);
  const int32_t token = sampler.run();
  if (first && threadIdx.x == 0) {
    if (token < 0) out.logprobs[row] = 0;
    out.tokens[row] = token;
    args.slots.last_token[slot] = token;
    if (token >= 0 && sampler.params.uses_history != 0 && args.slots.output_count != nullptr) {
      ++args.slots.output_count[slot * args.vocab_size + token];
    }
  }
  cooperative_groups::this_cluster().sync();  // no block leaves while another reads its sums
}

// grid: (blocks of a cluster, rows). `greedy_done`: sample_greedy_rows has dealt with those rows.
__global__ void __launch_bounds__(kRowThreads)
    sample_kernel(SampleArgs args, int32_t slice, bool greedy_done) {
  extern __shared__ float logits[];  // [slice]
  __shared__ RowShared shared;
  let_successor_start();
  const int64_t row = blockIdx.y;
  // The whole cluster; that of row 0 waits, so that the kernel ends after those before it.
  const bool done = greedy_done && is_greedy_row(args, row);
  if (done && row > 0) return;
  wait_for_predecessor();
  const uint32_t turn = *args.inputs.turn;
  const SampleOutputs out = outputs_of_turn(args, turn);
  if (blockIdx.x == 0 && row == 0 && threadIdx.x == 0) *out.turn = turn;
  if (!done) sample_row(args, out, row, slice, shared, logits);
}

}  // namespace

void sample(StreamRef stream, const SampleArgs& args) {
  const bool greedy_done = sample_greedy_rows(stream, args);
  const int64_t slice = ceil_div(args.vocab_size, kRowCluster * 4) * 4;
  LaunchShape shape;
  shape.grid = dim3(kRowCluster, static_cast<unsigned>(args.rows.padded));
  shape.threads = kRowThreads;
  shape.shared_bytes = static_cast<size_t>(slice) * sizeof(float);
  shape.cluster = kRowCluster;
  launch<&sample_kernel, 200 * 1024>(stream, "sample", shape, args, static_cast<int32_t>(slice),
                                     greedy_done);
}

}  // namespace refrain::kernels
