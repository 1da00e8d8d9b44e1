// share_keys: integer bookkeeping, latency bound, some 6 us. Every block lists the tiles of all
// rows and decides where all blocks' shares begin; then each of its warps looks up what the same
// warp of attention_stream.cu begins with.

#include "kernels/core/attention_units.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/key_shares.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scan_rows.cuh"

namespace refrain::kernels {
namespace {

struct Divisions {
  int32_t bound[kDivisions][kMaxStreamBlocks + 1];  // Bound::packed()
  int32_t worst[kDivisions];                        // what its longest share costs, in tiles
};

__device__ RowPlan plan_row(const ShareKeysArgs& args, int32_t r, int32_t live) {
  if (r >= live) return {};
  const int32_t token = __ldcg(args.inputs.query_start + r);
  const int32_t tokens = __ldcg(args.inputs.query_start + r + 1) - token;
  const int32_t length = __ldcg(args.inputs.seq_lens + r);
  const int32_t slot = __ldcg(args.inputs.row_slot + r);
  if (tokens * (args.q_heads / args.kv_heads) > kStreamQueries) return {};
  int32_t begin = 0;
  if (args.sliding_window > 0) {
    begin = max(0, length - tokens - args.sliding_window + 1);
  } else if (args.plan != nullptr && r < __ldcg(args.plan + kPlanSharedRows)) {
    begin = __ldcg(args.plan + kPlanPrefixKeys);
  }
  const int32_t first = begin / kStreamKeys * kStreamKeys;
  return {0, token, tokens, first, tokens > 0 ? length : first, slot};
}

__device__ void list_tiles(const ShareKeysArgs& args, int32_t rows, Plan& plan) {
  const int32_t live = args.reqs.live == nullptr ? rows : __ldcg(args.reqs.live);
  const auto tiles = [&](int32_t r) {
    const RowPlan row = plan.row[r] = plan_row(args, r, live);
    return (row.end - row.begin + kStreamKeys - 1) / kStreamKeys;
  };
  scan_rows(rows, tiles, [&](int32_t r, int32_t start) { plan.row[r].start = start; });
}

// The division whose longest share is the shortest.
__device__ void divide(const ShareKeysArgs& args, int32_t rows, Plan& plan) {
  __shared__ Divisions all;
  const auto blocks = static_cast<int32_t>(gridDim.x), thread = static_cast<int32_t>(threadIdx.x);
  const int64_t total = int64_t{plan.row[rows].start} * args.kv_heads;
  const Shares even(total, blocks);
  if (thread < kDivisions) all.worst[thread] = 0;
  for (int32_t b = thread; b <= blocks; b += kStreamThreads) {
    const int64_t at = even.first(b);
    const bool inside = at < total;
    const Cursor c = inside ? find(plan, rows, args.kv_heads, at) : Cursor{};
#pragma unroll
    for (int d = 0; d < kDivisions; ++d) {
      Bound bound{static_cast<int32_t>(total), false};
      if (inside) bound = near_unit(at, c.tile, c.tiles, nearness(d, total, blocks));
      all.bound[d][b] = bound.packed();
    }
  }
  __syncthreads();
  const int64_t meeting = kMeetingElements / args.head_dim;
#pragma unroll
  for (int d = 0; d < kDivisions; ++d) {
    int64_t worst = 0;
    for (int32_t b = thread; b < blocks; b += kStreamThreads) {
      const auto cost = share_cost(Bound::unpacked(all.bound[d][b]),
                                   Bound::unpacked(all.bound[d][b + 1]), meeting);
      worst = max(worst, cost);
    }
    atomicMax(&all.worst[d], static_cast<int32_t>(worst));
  }
  __syncthreads();
  int best = 0;
#pragma unroll
  for (int d = 1; d < kDivisions; ++d) {
    if (all.worst[d] < all.worst[best]) best = d;
  }
  for (int32_t b = thread; b <= blocks; b += kStreamThreads)
    plan.bounds[b] = Bound::unpacked(all.bound[best][b]).piece;
  __syncthreads();
}

__device__ void share_out(const ShareKeysArgs& args, int32_t rows, const Plan& plan,
                          WarpShare* shares) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  WarpShare& to = shares[block * kStreamWarps + warp];
  const BlockShares of{plan.bounds, kStreamWarps};
  const int64_t begin = of.first(block, warp);
  const auto count = static_cast<int32_t>(of.first(block, warp + 1) - begin);
  if (count == 0) {
    if (lane == 0) to.begin = static_cast<int32_t>(begin), to.count = to.stable = 0;
    return;
  }
  const Cursor c = find(plan, rows, args.kv_heads, begin + min(lane, count - 1));
  const RowPlan& row = plan.row[c.row];
  const bool stable = min(first_key(plan, c) + kStreamKeys, row.end) <= row.end - row.tokens;
  const uint32_t others = ~__ballot_sync(~0u, stable);
  to.cache_row[lane] = cache_row(args, plan, c);
  if (lane != 0) return;
  to.first = c;
  to.begin = static_cast<int32_t>(begin);
  to.count = count;
  to.stable = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
}

// grid: one block for each multiprocessor.
__global__ void __launch_bounds__(kStreamThreads)
    share_keys_kernel(const __grid_constant__ ShareKeysArgs args) {
  __shared__ Plan plan;
  wait_for_predecessor();
  let_successor_start();
  auto& to = *reinterpret_cast<KeyShares*>(args.shares);
  const int32_t rows = min(args.reqs.padded, kMaxStreamReqs);
  list_tiles(args, rows, plan);
  divide(args, rows, plan);
  if (blockIdx.x == 0) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < Plan::words(rows); i += kStreamThreads)
      to.plan.data()[i] = plan.data()[i];
  }
  share_out(args, rows, plan, to.warp);
}

}  // namespace

int64_t key_shares_ints() { return sizeof(KeyShares) / sizeof(int32_t); }

bool wants_key_shares(StreamRef stream, int32_t reqs, int32_t kv_heads, int32_t block_size) {
  const CudaLauncher& on = launcher(stream);
  return on.hopper && on.sm_count <= kMaxStreamBlocks && block_size % kStreamKeys == 0 &&
         int64_t{reqs} * kv_heads > kMaxRopeUnits;
}

void share_keys(StreamRef stream, const ShareKeysArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(launcher(stream).sm_count));
  shape.threads = kStreamThreads;
  launch<&share_keys_kernel>(stream, "share_keys", shape, args);
}

}  // namespace refrain::kernels
