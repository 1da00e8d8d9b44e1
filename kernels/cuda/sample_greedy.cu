// Rows that are plainly greedy, when there are many: every logit is read once and nothing is kept,
// bound by memory. The other rows are left to the kernel of sample.cu.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_row.cuh"

namespace refrain::kernels {
namespace {

constexpr int kGreedyThreads = 256;
constexpr int64_t kManyRows = 16;

// grid: (parts of a row, rows); the last block of a row to come ends it. best: [rows][parts].
__global__ void __launch_bounds__(kGreedyThreads)
    greedy_kernel(SampleArgs args, int32_t slice, Sum* best, uint32_t* arrivals) {
  __shared__ Sum shared[kGreedyThreads / 32];
  let_successor_start();
  const int64_t row = blockIdx.y;
  const bool here = is_greedy_row(args, row);
  const SampleOutputs out = outputs_of_turn(args, *args.inputs.turn);
  wait_for_predecessor();
  if (!here) return;
  const int64_t slot = args.inputs.row_slot[row];
  const int64_t begin = int64_t{blockIdx.x} * slice;
  const int64_t end = begin + slice < args.vocab_size ? begin + slice : args.vocab_size;
  uint32_t high = 0;
  int32_t token = 0;
  for_each_logit(args, row, begin, end, kGreedyThreads, [&](int32_t i, float x) {  // ascending
    const uint32_t key = key_of(x);
    token = key > high ? i : token;
    high = key > high ? key : high;
  });
  Sum mine = ranked(high, token);
  for (int offset = 16; offset > 0; offset /= 2) {
    const Sum other = __shfl_xor_sync(~0u, mine, offset);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  Sum* parts = best + row * gridDim.x;
  bool last = false;
  if (threadIdx.x == 0) {
    for (int w = 1; w < kGreedyThreads / 32; ++w) mine = shared[w] > mine ? shared[w] : mine;
    __stcg(parts + blockIdx.x, mine);
    __threadfence();
    last = atomicAdd(arrivals + row, 1u) + 1 == gridDim.x;
    __threadfence();
  }
  if (!__any_sync(~0u, last)) return;
  clear_top(out, row);
  if (threadIdx.x != 0) return;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    const Sum other = __ldcg(parts + i);
    mine = other > mine ? other : mine;
  }
  const int32_t found = mine >> 32 < kLowestKey ? -1 : token_of(mine);
  out.logprobs[row] = 0;
  out.tokens[row] = found;
  if (args.slots.last_token != nullptr) args.slots.last_token[slot] = found;
  arrivals[row] = 0;
}

}  // namespace

bool sample_greedy_rows(StreamRef stream, const SampleArgs& args) {
  const CudaLauncher& on = launcher(stream);
  const int64_t rows = args.rows.padded, parts = rows >= 128 ? 8 : 16;
  if (rows < kManyRows || rows > kMaxArrivals) return false;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(parts), static_cast<unsigned>(rows));
  shape.threads = kGreedyThreads;
  launch<&greedy_kernel>(stream, "sample", shape, args,
                         static_cast<int32_t>(ceil_div(args.vocab_size, parts * 4) * 4),
                         static_cast<Sum*>(on.workspace), on.arrivals.greedy);
  return true;
}

}  // namespace refrain::kernels
