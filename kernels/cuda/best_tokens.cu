// best_tokens: the greatest logit of each slice of a row, for plainly greedy rows. Every logit is
// read once and nothing is kept; bound by memory. No block waits for another: the slices are
// compared by sample, behind the exchange between ranks.

#include "kernels/core/sample_args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_select.cuh"

namespace refrain::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // loads under way together

// grid: (kBestParts, rows). `wide`: rows and slices begin at multiples of 16 bytes.
__global__ void __launch_bounds__(kThreads)
    best_tokens_kernel(const __grid_constant__ BestTokensArgs args, int32_t slice, bool wide) {
  __shared__ Sum shared[kThreads / 32];
  let_successor_start();
  wait_for_predecessor();
  const int64_t row = blockIdx.y;
  if (row >= live_rows(args.rows) || (args.inputs.row_flags[row] & kRowSamples) == 0) return;
  if (!is_plain_greedy(args.params[args.inputs.row_slot[row]])) return;
  const int32_t begin = min(static_cast<int32_t>(blockIdx.x) * slice, args.num_tokens);
  const int32_t end = min(begin + slice, args.num_tokens);
  const float* p = static_cast<const float*>(args.logits.data) + row * args.logits.stride;
  uint32_t high = 0;
  int32_t token = 0;
  const auto look = [&](int32_t i, float x) {  // ascending in each thread
    const uint32_t key = key_of(x);
    token = key > high ? i : token;
    high = key > high ? key : high;
  };
  int32_t i = begin + static_cast<int32_t>(threadIdx.x) * 4;
  const int32_t whole = wide ? begin + (end - begin) / 4 * 4 : begin;
  for (; i < whole; i += kBatch * kThreads * 4) {
    float4 x[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (i + u * kThreads * 4 < whole) {
        x[u] = *reinterpret_cast<const float4*>(p + i + u * kThreads * 4);
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int32_t at = i + u * kThreads * 4;
      if (at >= whole) break;
      look(at, x[u].x), look(at + 1, x[u].y), look(at + 2, x[u].z), look(at + 3, x[u].w);
    }
  }
  for (i = whole + static_cast<int32_t>(threadIdx.x); i < end; i += kThreads) look(i, p[i]);
  Sum mine = ranked(high, token);
  for (int offset = 16; offset > 0; offset /= 2) {
    const Sum other = __shfl_xor_sync(~0u, mine, offset);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) mine = shared[w] > mine ? shared[w] : mine;
  const bool found = key_in(mine) >= kLowestKey;
  auto* best = reinterpret_cast<float2*>(args.best) + row * kBestParts + blockIdx.x;
  *best = found ? make_float2(logit_of(key_in(mine)),
                              static_cast<float>(args.first_token + token_of(mine)))
                : make_float2(-INFINITY, -1.0f);
}

}  // namespace

void best_tokens(StreamRef stream, const BestTokensArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(kBestParts, static_cast<unsigned>(args.rows.padded));
  shape.threads = kThreads;
  const auto slice = static_cast<int32_t>(ceil_div(args.num_tokens, kBestParts * 4) * 4);
  launch<&best_tokens_kernel>(stream, "best_tokens", shape, args, slice,
                              is_wide(args.logits.data) && args.logits.stride % 4 == 0);
}

}  // namespace refrain::kernels
