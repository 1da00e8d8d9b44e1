// sample: a cluster of blocks a row, its processed logits in shared memory: memory is read once.
// What a random draw takes is found among the few tokens that can still be it (sample_select.cuh):
// a pass that adds up bins, one that collects, a sort of the list by one block; a top-k that is not
// large is decided by the list alone. Same order as on the host: all tokens ascending when neither
// top-k nor top-p is on, else the most likely first, ties by token.
//
// Bound by reading the logits and by the passes over shared memory; a few rows by the barriers of
// the cluster. H200, 128256 tokens, 1, 32, 128 rows: greedy (sample_greedy.cu) 5.9, 7.6, 23.8 us;
// top-k 50 23, 34, 99; top-p of normal logits 45, 69, 196.

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

#include "kernels/cuda/cluster_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/peer_packets.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/cuda/sample_row.cuh"
#include "kernels/cuda/sample_select.cuh"
#include "kernels/cuda/wait_for_grammar.cuh"

namespace refrain::kernels {
namespace {

// One row: what all threads of the cluster know of it.
struct Sampler {
  const SampleArgs& args;
  const SampleOutputs& out;
  const SlotParams& params;
  int64_t row;
  int64_t slot;
  ClusterRow cluster;
  float* logits;           // shared, [cluster.count], then NaN up to a multiple of 4
  float sure = -INFINITY;  // kSureTokens tokens at least have this logit or a higher one

  __device__ const uint32_t* take_mask();
  // Mask, bias, repetition, frequency and presence penalties: kernels/host/sampling.cpp. Returns
  // the best token, 0 where none is a number above -inf.
  __device__ Sum load();
  __device__ Sum load_raw();  // the logits as the model gave them; the best token
  __device__ void add_bias();
  __device__ void penalise();
  __device__ int32_t draw(float highest);
  __device__ void leave(float least, Sum last);
  __device__ Sum best_below(Sum than);
  __device__ void write_top(int32_t i, Sum ranked, float log_sum);
  __device__ void write_logprobs(Sum best, int32_t token);
  __device__ int32_t run();
};

// The words of the mask with this block's tokens, in shared memory; null: all are allowed.
__device__ const uint32_t* Sampler::take_mask() {
  static_assert(kMaxVocab / kRowCluster / 32 + 2 <= 2 * kBins);
  if (params.has_allowed_mask == 0) return nullptr;
  const int64_t words = (int64_t{args.vocab_size} + 31) / 32;
  const uint32_t* mask = args.slots.allowed_mask + slot * words;
  bool made = true;
  if (params.follows_grammar != 0) {
    const uint32_t turn = *args.inputs.turn;
    const GrammarMaskInputs& grammar = turn % 2 == 0 ? args.grammar[0] : args.grammar[1];
    mask = grammar.mask + row * words;
    made = __syncthreads_or(threadIdx.x == 0 && wait_for_grammar(grammar.ready + row, turn)) != 0;
  }
  const int32_t first = cluster.begin / 32, past = (cluster.begin + cluster.count + 31) / 32;
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x); i < past; i += kRowThreads) {
    cluster.shared->parts[i - first] = made ? *const_cast<const volatile uint32_t*>(mask + i) : 0u;
  }
  __syncthreads();
  return cluster.shared->parts;
}

__device__ Sum Sampler::load() {
  const int32_t begin = cluster.begin, first_word = begin / 32;
  const uint32_t* mask = take_mask();
  uint32_t high = 0;
  int32_t best = 0;
  const auto look = [&](int32_t token, float x) {  // ascending
    const uint32_t key = key_of(x);
    best = key > high ? token : best;
    high = key > high ? key : high;
  };
  const auto allow = [&](int32_t token, float x) {
    const bool allowed =
        mask == nullptr || (mask[token / 32 - first_word] >> (token % 32) & 1u) != 0;
    return allowed ? x : -INFINITY;
  };
  const auto one = [&](int32_t token, float x) {
    x = allow(token, x);
    logits[token - begin] = x;
    look(token, x);
  };
  const auto four = [&](int32_t token, float4 x) {
    if ((token - begin) % 4 != 0) {
      one(token, x.x), one(token + 1, x.y), one(token + 2, x.z), one(token + 3, x.w);
      return;
    }
    x.x = allow(token, x.x), x.y = allow(token + 1, x.y);
    x.z = allow(token + 2, x.z), x.w = allow(token + 3, x.w);
    *reinterpret_cast<float4*>(logits + (token - begin)) = x;
    look(token, x.x), look(token + 1, x.y), look(token + 2, x.z), look(token + 3, x.w);
  };
  for_each_logit(args, row, begin, int64_t{begin} + cluster.count, kRowThreads, four, one);
  const int32_t past = cluster.count + static_cast<int32_t>(threadIdx.x);
  if (past < (cluster.count + 3) / 4 * 4) logits[past] = NAN;
  __syncthreads();
  const bool history = params.uses_history != 0 && args.slots.output_count != nullptr;
  if (params.num_logit_bias > 0 || history) {
    add_bias();
    if (history) penalise();
    high = 0;
    cluster.each_token(look);
  }
  uint32_t warp_high = high;
  for (int offset = 16; offset > 0; offset /= 2) {
    warp_high = ::max(warp_high, __shfl_xor_sync(~0u, warp_high, offset));
  }
  Sum values[2] = {ranked(high, best), 0xffffffffu - warp_high};
  cluster.reduce<2, true>(values);
  const auto least = 0xffffffffu - static_cast<uint32_t>(values[1]);
  if (least >= kLowestKey) sure = logit_of(least);
  return key_in(values[0]) < kLowestKey ? 0 : values[0];
}

// A block's part of a row, as the model gave it. Not inlined: rows that need it are few, and what
// it takes would cost all of them registers.
__noinline__ __device__ void copy_logits(const float* from, int64_t shard_cols,
                                         int64_t shard_stride, int32_t begin, int32_t count,
                                         float* to) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kRowThreads) {
    const int64_t token = int64_t{begin} + i, shard = token / shard_cols;
    to[i] = from[shard * shard_stride + token % shard_cols];
  }
  __syncthreads();
}

__device__ Sum Sampler::load_raw() {
  copy_logits(args.logits + row * args.shard_cols, args.shard_cols, args.shard_stride,
              cluster.begin, cluster.count, logits);
  sure = -INFINITY;
  return best_below(~Sum{0});
}

// Neither a penalty nor a temperature makes an infinity of a number: -inf would forbid the token.
// NaN stays NaN.
__device__ float kept_finite(float changed, float before) {
  if (!(before >= -FLT_MAX)) return changed;
  return changed > FLT_MAX ? FLT_MAX : (changed < -FLT_MAX ? -FLT_MAX : changed);
}

// A block's part of a row as the row draws from it: over the temperature, and -inf for tokens below
// `least`, behind `last`, or no number. Not inlined, as above.
__noinline__ __device__ void leave_logits(float least, Sum last, float temperature, int32_t begin,
                                          int32_t count, float* logits) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kRowThreads) {
    const float x = logits[i];
    const bool stays = x >= least && ranked(key_of(x), begin + i) >= last;
    logits[i] = stays ? kept_finite(x / temperature, x) : -INFINITY;
  }
  __syncthreads();
}

// All threads are behind a barrier after their last look at the logits.
__device__ void Sampler::leave(float least, Sum last) {
  if (!args.tells_processed || params.num_logprobs < 0) return;
  leave_logits(least, last, params.temperature, cluster.begin, cluster.count, logits);
}

__device__ void Sampler::add_bias() {
  if (threadIdx.x == 0) {  // a token may be listed twice
    for (int32_t i = 0; i < params.num_logit_bias; ++i) {
      const int32_t at = args.slots.bias_token[slot * kMaxLogitBias + i] - cluster.begin;
      if (at >= 0 && at < cluster.count) {
        logits[at] += args.slots.bias_value[slot * kMaxLogitBias + i];
      }
    }
  }
  __syncthreads();
}

__device__ void Sampler::penalise() {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < cluster.count; i += kRowThreads) {
    const int64_t at = slot * args.vocab_size + cluster.begin + i;
    const int32_t output = args.slots.output_count[at];
    if (output == 0 && args.slots.in_prompt[at] == 0) continue;
    float x = logits[i];
    // __fmul_rn: a fused product and sum would round differently from the host's.
    x = x > 0 ? x / params.repetition_penalty : __fmul_rn(x, params.repetition_penalty);
    if (output != 0) {
      x -= __fmul_rn(params.frequency_penalty, static_cast<float>(output));
      x -= params.presence_penalty;
    }
    logits[i] = kept_finite(x, logits[i]);
  }
  __syncthreads();
}

__device__ int32_t Sampler::draw(float highest) {
  const Distance distance{highest, kOctavesANat / params.temperature};
  const double uniform =
      uniform_draw(params.seed, static_cast<uint64_t>(args.inputs.seq_lens[row]));
  float least = -FLT_MAX;
  if (params.min_p > 0.0f) {
    const float light = highest + __fmul_rn(params.temperature, logf(params.min_p));
    least = fmaxf(least, fminf(highest, light));
  }
  if (params.top_k <= 0 && params.top_p >= 1.0f) {
    const int32_t token =
        cluster.draw_in_order([&](float x) { return x >= least ? weight_of(distance, x) : 0; },
                              [uniform](Sum all) { return target_of(uniform, all); });
    leave(least, 0);
    return token;
  }
  RowSelect<ClusterRow> select{cluster, distance, least, args.vocab_size};
  const int32_t token = select.draw(params, uniform, sure);
  leave(select.least, select.last);
  return token;
}

// The best token that ranks below `than`; 0: none.
__device__ Sum Sampler::best_below(Sum than) {
  Sum best = 0;
  cluster.each_token([&](int32_t token, float x) {
    const uint32_t key = key_of(x);
    const Sum here = ranked(key, token);
    if (key != 0 && here < than && here > best) best = here;
  });
  return cluster.max(best);
}

__device__ void Sampler::write_top(int32_t i, Sum ranked, float log_sum) {
  out.top_tokens[row * kMaxLogprobs + i] = ranked == 0 ? -1 : token_of(ranked);
  out.top_logprobs[row * kMaxLogprobs + i] =
      ranked == 0 ? -INFINITY : logit_of(key_in(ranked)) - log_sum;
}

__device__ void Sampler::write_logprobs(Sum best, int32_t token) {
  const float highest = logit_of(key_in(best));
  const Distance distance{highest, kOctavesANat};
  Sum mine = 0;
  cluster.each_token([&](int32_t, float x) { mine += x >= -FLT_MAX ? weight_of(distance, x) : 0; });
  const double sum = static_cast<double>(cluster.sum(mine)) / kWeightOne;
  const float log_sum = args.tells_logits ? 0.0f : static_cast<float>(highest + log(sum));
  const int32_t at = token - cluster.begin;
  if (at >= 0 && at < cluster.count && threadIdx.x == 0) {
    out.logprobs[row] = logits[at] - log_sum;
  }
  const int32_t n = min(min(params.num_logprobs, kMaxLogprobs), args.vocab_size);
  if (n <= 0) return;
  RowSelect<ClusterRow> select{cluster, distance, -FLT_MAX, args.vocab_size};
  ClusterRow::Shares counts;
  int32_t found = n;
  const bool listed = select.list_top(found, sure, counts) > 0;
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (listed && found == n) {
    if (cluster.leads() && i < n) write_top(i, cluster.listed(i), log_sum);
    return;
  }
  for (int32_t place = 0; place < n; ++place) {  // of -inf, or of many ties
    if (cluster.leads() && i == 0) write_top(place, best, log_sum);
    if (best != 0) best = best_below(best);
  }
}

// The sampled token; -1 where no logit is a number above -inf.
__device__ int32_t Sampler::run() {
  Sum best = 0;
  if (is_plain_greedy(params)) {
    for_each_logit(args, row, cluster.begin, int64_t{cluster.begin} + cluster.count, kRowThreads,
                   [&](int32_t token, float x) {
                     const Sum here = ranked(key_of(x), token);
                     best = here > best ? here : best;
                   });
    best = cluster.max(best);
    return key_in(best) < kLowestKey ? -1 : token_of(best);
  }
  best = load();
  if (best == 0) return -1;
  int32_t token = token_of(best);
  if (params.temperature > kGreedyTemperature) token = draw(logit_of(key_in(best)));
  if (params.num_logprobs >= 0) {
    // All threads are behind a barrier after their last look at the logits: that of the draw, or of
    // the search for the best.
    if (args.tells_processed) {
      sure = -INFINITY;  // the draw has changed them
      best = best_below(~Sum{0});
    } else if (changes_logits(params)) {
      best = load_raw();
    }
    write_logprobs(best, token);
  }
  return token;
}

// The token of a plainly greedy row from what was found in its parts; by one warp.
__device__ int32_t best_of_parts(const SampleArgs& args, int64_t row) {
  Sum best = 0;
  const auto* found = reinterpret_cast<const float2*>(args.best);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.shards * args.best_parts; i += 32) {
    const int64_t shard = i / args.best_parts, part = i % args.best_parts;
    const float2 of_part = found[(shard * args.rows.padded + row) * args.best_parts + part];
    const Sum here = ranked(key_of(of_part.x), static_cast<int32_t>(of_part.y));
    best = here > best ? here : best;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const Sum other = __shfl_xor_sync(~0u, best, offset);
    best = other > best ? other : best;
  }
  return key_in(best) < kLowestKey ? -1 : token_of(best);
}

// By the first block of a row's cluster.
__device__ void write_greedy_row(const SampleArgs& args, const SampleOutputs& out, int64_t row) {
  clear_top(out, row);
  if (threadIdx.x >= 32) return;
  const int32_t token = best_of_parts(args, row);
  if (threadIdx.x != 0) return;
  out.logprobs[row] = 0;
  out.tokens[row] = token;
  if (args.slots.last_token != nullptr) args.slots.last_token[args.inputs.row_slot[row]] = token;
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
  Sampler sampler{args, out, args.slots.params[slot], row, slot, {&shared, logits}, logits};
  sampler.cluster.begin = min(args.vocab_size, static_cast<int32_t>(blockIdx.x) * slice);
  sampler.cluster.count = min(slice, args.vocab_size - sampler.cluster.begin);
  const int32_t token = sampler.run();
  if (first && threadIdx.x == 0) {
    if (token < 0) out.logprobs[row] = 0;
    out.tokens[row] = token;
    const bool takes = args.slots.last_token != nullptr;  // else accept_drafts does
    if (takes) args.slots.last_token[slot] = token;
    if (takes && token >= 0 && sampler.params.uses_history != 0 &&
        args.slots.output_count != nullptr) {
      ++args.slots.output_count[slot * args.vocab_size + token];
    }
  }
  cooperative_groups::this_cluster().sync();  // no block leaves while another reads its sums
}

// grid: (blocks of a cluster, rows). `greedy_done`: sample_greedy_rows has dealt with those rows.
__global__ void __launch_bounds__(kRowThreads, 3)
    sample_kernel(SampleArgs args, int32_t slice, bool greedy_done) {
  extern __shared__ __align__(16) float logits[];  // [slice]
  __shared__ RowShared shared;
  let_successor_start();
  const int64_t row = blockIdx.y;
  const bool greedy = is_greedy_row(args, row);
  const bool from_parts = greedy && args.best != nullptr;
  // The whole cluster; that of row 0 waits, so that the kernel ends after those before it.
  const bool done = greedy && (greedy_done || from_parts);
  if (done && row > 0 && (!from_parts || blockIdx.x > 0)) return;
  wait_for_predecessor();
  const uint32_t turn = *args.inputs.turn;
  const SampleOutputs out = outputs_of_turn(args, turn);
  if (blockIdx.x == 0 && row == 0 && threadIdx.x == 0) *out.turn = turn;
  if (from_parts && blockIdx.x == 0) write_greedy_row(args, out, row);
  if (!done) sample_row(args, out, row, slice, shared, logits);
}

}  // namespace

void sample(StreamRef stream, const SampleArgs& args) {
  const bool greedy_done = args.best == nullptr && sample_greedy_rows(stream, args);
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
