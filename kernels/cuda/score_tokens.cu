// score_tokens: log-probabilities of given tokens. One block a row; it reads the row's logits
// twice, and once more for each likely token that is asked for. A chunk of rows lies in the
// second-level cache then, so that it is bound by that, and by the lm_head before it as a whole.

#include "kernels/core/sample_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_select.cuh"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// f(logit, token) for this thread's tokens.
template <class F>
__device__ void each_token(const ScoreTokensArgs& args, int64_t row, F&& f) {
  for (int64_t shard = 0; shard < args.shards; ++shard) {
    const float* p = args.logits + shard * args.shard_stride + row * args.shard_cols;
    const auto first = static_cast<int32_t>(shard * args.shard_cols);
    const int64_t left = args.vocab_size - int64_t{first};
    const auto count = static_cast<int32_t>(left < args.shard_cols ? left : args.shard_cols);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) f(p[i], first + i);
  }
}

// Of all threads, on all threads; `shared` is free again afterwards.
template <class T, class Join>
__device__ T over_block(T mine, T* shared, Join join) {
  for (int offset = 16; offset > 0; offset /= 2)
    mine = join(mine, __shfl_xor_sync(~0u, mine, offset));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  T all = shared[0];
  for (int warp = 1; warp < kWarps; ++warp) all = join(all, shared[warp]);
  __syncthreads();
  return all;
}

// grid: (rows)
__global__ void __launch_bounds__(kThreads)
    score_tokens_kernel(const __grid_constant__ ScoreTokensArgs args) {
  __shared__ Sum ranks[kWarps];
  __shared__ double sums[kWarps];
  let_successor_start();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  const int32_t token = args.tokens[row];
  if (token < 0) return;
  const int32_t wanted = args.num_top[row];
  const int32_t most = wanted < kMaxLogprobs ? wanted : kMaxLogprobs;
  const float own = args.logits[token / args.shard_cols * args.shard_stride +
                                row * args.shard_cols + token % args.shard_cols];
  const auto greater = [](Sum a, Sum b) { return a > b ? a : b; };
  Sum best = 0, rank = 0;
  each_token(args, row, [&](float x, int32_t at) {
    best = greater(best, ranked(key_of(x), at));
    rank += x >= own ? 1 : 0;
  });
  best = over_block(best, ranks, greater);
  rank = over_block(rank, ranks, [](Sum a, Sum b) { return a + b; });
  const float highest = logit_of(key_in(best));
  double sum = 0;
  each_token(args, row, [&](float x, int32_t) { sum += x == x ? expf(x - highest) : 0.0f; });
  sum = over_block(sum, sums, [](double a, double b) { return a + b; });
  const auto log_sum = static_cast<float>(highest + log(sum));
  if (threadIdx.x == 0) {
    args.outputs.logprobs[row] = own - log_sum;
    args.outputs.ranks[row] = static_cast<int32_t>(rank);
  }
  for (int32_t i = 0; i < kMaxLogprobs; ++i) {
    const bool has = i < most && key_in(best) > 0;  // 0: NaN, or no tokens are left
    if (threadIdx.x == 0) {
      args.outputs.top_tokens[row * kMaxLogprobs + i] = has ? token_of(best) : -1;
      args.outputs.top_logprobs[row * kMaxLogprobs + i] =
          has ? logit_of(key_in(best)) - log_sum : 0.0f;
    }
    if (!has || i + 1 == most) {
      best = 0;
      continue;
    }
    Sum next = 0;
    each_token(args, row, [&](float x, int32_t at) {
      const Sum here = ranked(key_of(x), at);
      next = here < best ? greater(next, here) : next;
    });
    best = over_block(next, ranks, greater);
  }
}

}  // namespace

void score_tokens(StreamRef stream, const ScoreTokensArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.rows));
  shape.threads = kThreads;
  launch<&score_tokens_kernel>(stream, "score_tokens", shape, args);
}

}  // namespace refrain::kernels
