// Decode attention of many requests, bfloat16: all keys of all requests are one list of tiles of
// 16, cut into equal shares, one for each warp of the device. A warp walks its share, whatever
// requests and heads it crosses, with a ring of its own that never runs empty; no barriers. What a
// warp has of a request and head that others share goes to a workspace, and the last of them to
// come adds the parts, in their order. The launch shape is that of the device; shares are computed
// from the lengths, on the device. Bound by memory, but for some 13 us of planning and adding up.
//
// H200, 8 KV heads of 128, of 4543 GB/s: 68 % (128 requests of 320), 76 % (of 512), 83 % (of 1024),
// 90 % (of 4096), 87 % (256 of 1024).

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {
namespace {

constexpr int kMostStages = 6;

template <int kDim>
struct Stream : WarpSoftmax<kDim, kStreamKeys> {
  using Math = WarpSoftmax<kDim, kStreamKeys>;
  using Math::acc, Math::highest, Math::lane, Math::q, Math::sum;
  using Math::kDimTiles, Math::kRowBytes;
  static constexpr int kStageBytes = 2 * kStreamKeys * kRowBytes;  // keys, then values
  static constexpr int kFit =
      (kMaxSharedBytes - 512 - static_cast<int>(sizeof(Plan))) / (kStreamWarps * kStageBytes);
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static constexpr int kSharedBytes = kStages * kStreamWarps * kStageBytes;
  // A part in the workspace: sums [16][kDim], then maxima [16], then totals [16].
  static constexpr int kPartFloats = kWarpQueries * (kDim + 2);
  static_assert(kStages >= 3);

  const AttentionArgs& args;
  const Plan& plan;
  int32_t group;
  float* parts;        // [workers][2] parts
  uint32_t* arrivals;  // [workers] parts that have come, of the unit that begins with the worker
  uint32_t ring;       // this warp's, in shared memory
  Cursor ahead{};      // the tile to fetch next
  int32_t block = 0;   // of this lane's position in it

  __device__ KeySpan visible(const Cursor& c) const {
    return {plan.row[c.row].begin + c.tile * kStreamKeys, plan.row[c.row].end};
  }

  __device__ void look_up() {
    const KeySpan keys = visible(ahead);
    const int32_t position = min(keys.begin + lane() % kStreamKeys, keys.end - 1);
    block = __ldcg(args.block_table + int64_t{plan.row[ahead.row].slot} * args.max_blocks +
                   position / args.block_size);
  }

  // Starts the copy of the tile at `ahead`.
  __device__ void fetch(int stage) const {
    constexpr int kUnits = kDim / 8;  // 16-byte pieces of a row
    const uint32_t base = ring + static_cast<uint32_t>(stage * kStageBytes);
    const auto* cache = static_cast<const __nv_bfloat16*>(args.cache);
    const KeySpan keys = visible(ahead);
    const int32_t count = keys.end - keys.begin;  // of the tile's 16 keys, if fewer
    const int64_t values = int64_t{args.kv_heads} * args.block_size * kDim;
    const int32_t position = min(keys.begin + lane() % kStreamKeys, keys.end - 1);
    const int32_t own =
        (block * 2 * args.kv_heads + ahead.head) * args.block_size + position % args.block_size;
    if (args.block_size % kStreamKeys == 0 && keys.begin % kStreamKeys == 0) {  // one block
      const auto* from = cache + int64_t{__shfl_sync(~0u, own, 0)} * kDim + lane() * 8;
#pragma unroll
      for (int i = 0; i < kStreamKeys * kUnits / 32; ++i) {
        const int e = lane() + i * 32, key = e / kUnits, unit = e % kUnits;
        const uint32_t to = base + static_cast<uint32_t>(key * kRowBytes + unit * 16);
        const bool valid = key < count;
        copy_async(to, valid ? from + i * 256 : cache, valid);
        copy_async(to + kStreamKeys * kRowBytes, valid ? from + values + i * 256 : cache, valid);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kStreamKeys * kUnits / 32; ++i) {
      const int e = lane() + i * 32, key = e / kUnits, unit = e % kUnits;
      const auto* from = cache + int64_t{__shfl_sync(~0u, own, key)} * kDim + unit * 8;
      const uint32_t to = base + static_cast<uint32_t>(key * kRowBytes + unit * 16);
      copy_async(to, from, key < count);
      copy_async(to + kStreamKeys * kRowBytes, from + values, key < count);
    }
  }

  // Queries (token, head) of the cursor's request and KV head; those past the last read as 0.
  __device__ void load_queries(const Cursor& c, uint32_t (&to)[kDim / 16][4]) const {
    const RowPlan& row = plan.row[c.row];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query < row.tokens * group) {
        const auto* p = static_cast<const uint32_t*>(args.q.data) +
                        ((row.token + query / group) * args.q.stride +
                         (int64_t{c.head} * group + query % group) * kDim) /
                            2 +
                        lane() % 4;
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
          to[k][half] = p[k * 8];
          to[k][half + 2] = p[k * 8 + 4];
        }
      } else {
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) to[k][half] = to[k][half + 2] = 0;
      }
    }
  }

  __device__ __nv_bfloat16* out(const Cursor& c, int query, int col) const {
    return static_cast<__nv_bfloat16*>(args.out.data) +
           (plan.row[c.row].token + query / group) * args.out.stride +
           (int64_t{c.head} * group + query % group) * kDim + col;
  }

  __device__ void write(const Cursor& c) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= plan.row[c.row].tokens * group) continue;
      const float inverse = 1.0f / sum[half];
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        *reinterpret_cast<uint32_t*>(out(c, query, d * 8 + lane() % 4 * 2)) =
            pack_halves(acc[d][half * 2] * inverse, acc[d][half * 2 + 1] * inverse);
      }
    }
  }

  __device__ float* part(int64_t i) const { return parts + i * kPartFloats; }

  __device__ void write_part(const Cursor& c, int64_t i) const {
    float* to = part(i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= plan.row[c.row].tokens * group) continue;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        *reinterpret_cast<float2*>(to + query * kDim + d * 8 + lane() % 4 * 2) =
            make_float2(acc[d][half * 2], acc[d][half * 2 + 1]);
      }
      if (lane() % 4 == 0) {
        to[kWarpQueries * kDim + query] = highest[half];
        to[kWarpQueries * (kDim + 1) + query] = sum[half];
      }
    }
  }

  // Parts of workers [first, last]: the first's is its second, the others' their first.
  __device__ void merge(const Cursor& c, int32_t first, int32_t last) const {
    const int32_t count = plan.row[c.row].tokens * group * kDim;
    for (int32_t e = lane() * 4; e < count; e += 128) {
      const int32_t query = e / kDim;
      float top = -INFINITY, total = 0;
      float4 value = {0, 0, 0, 0};
#pragma unroll 4
      for (int32_t w = first; w <= last; ++w) {
        const float* p = part(2 * int64_t{w} + (w == first ? 1 : 0));
        const float high = __ldcg(p + kWarpQueries * kDim + query);
        const float own = __ldcg(p + kWarpQueries * (kDim + 1) + query);
        const float4 x = __ldcg(reinterpret_cast<const float4*>(p + e));
        const float both = fmaxf(top, high);
        const float old = top == -INFINITY ? 0.0f : exp2f(top - both);
        const float fresh = high == -INFINITY ? 0.0f : exp2f(high - both);
        top = both;
        total = total * old + own * fresh;
        value.x = value.x * old + x.x * fresh, value.y = value.y * old + x.y * fresh;
        value.z = value.z * old + x.z * fresh, value.w = value.w * old + x.w * fresh;
      }
      const float inverse = 1.0f / total;
      auto* to = reinterpret_cast<uint32_t*>(out(c, query, e % kDim));
      to[0] = pack_halves(value.x * inverse, value.y * inverse);
      to[1] = pack_halves(value.z * inverse, value.w * inverse);
    }
  }

  // The tiles of a request and head that this worker has are done.
  __device__ void finish_unit(const Cursor& c, const Shares& shares, int32_t worker) {
    this->finish();
    Cursor begin = c;
    begin.tile = 0;
    const int64_t first_tile = begin.index(plan, args.kv_heads);
    const int32_t first = shares.owner(first_tile);
    const int32_t last = shares.owner(first_tile + c.tiles - 1);
    if (first == last) return write(c);
    write_part(c, 2 * int64_t{worker} + (worker == first ? 1 : 0));
    __threadfence();
    __syncwarp();
    uint32_t come = 0;
    if (lane() == 0) come = atomicAdd(arrivals + first, 1u) + 1;
    come = __shfl_sync(~0u, come, 0);
    if (come != static_cast<uint32_t>(last - first + 1)) return;
    __threadfence();
    merge(c, first, last);
    if (lane() == 0) arrivals[first] = 0;
  }

  __device__ void run(const Shares& shares, int32_t worker) {
    const int64_t begin = shares.first(worker);
    const auto count = static_cast<int32_t>(shares.first(worker + 1) - begin);
    int fetched = 0;
    const auto fetch_next = [&] {
      if (fetched < count) {
        fetch(fetched % kStages);
        if (++fetched < count) {
          ahead.next(plan, args.kv_heads);
          look_up();
        }
      }
      commit_copies();
    };
    Cursor now{};
    int started = 0;
    if (count > 0) {
      now = ahead = find(plan, args.reqs.padded, args.kv_heads, begin);
      look_up();
      // Before the wait, keys of earlier steps alone.
      for (; started < kStages - 1 && fetched < count; ++started) {
        const RowPlan& row = plan.row[ahead.row];
        if (min(visible(ahead).begin + kStreamKeys, row.end) > row.end - row.tokens) break;
        fetch_next();
      }
    }
    wait_for_predecessor();
    if (count == 0) return;
    for (; started < kStages - 1; ++started) fetch_next();
    uint32_t next_q[kDim / 16][4];
    load_queries(now, next_q);
    const float scale = args.scale * kLog2E;
    KeySpan seen[2];
    bool fresh = true;
    for (int32_t c = 0; c < count; ++c) {
      if (fresh) {
        start_unit(now, next_q, seen);
        Cursor unit = now;  // the next request and head, if they are this worker's
        unit.tile = unit.tiles - 1;
        if (c + now.tiles - now.tile < count) {
          unit.next(plan, args.kv_heads);
          load_queries(unit, next_q);
        }
      }
      wait_copies<kStages - 2>();
      __syncwarp();  // the tile is here, and the one before it is free
      fetch_next();
      const uint32_t keys = ring + static_cast<uint32_t>(c % kStages * kStageBytes);
      float s[2][4];
      this->score(keys, s);
      this->soften(visible(now).begin, seen, scale, s);
      this->add_values(keys + kStreamKeys * kRowBytes, s);
      fresh = now.tile + 1 == now.tiles || c + 1 == count;
      if (fresh) finish_unit(now, shares, worker);
      if (c + 1 < count) now.next(plan, args.kv_heads);
    }
    wait_copies<0>();
  }

  __device__ void start_unit(const Cursor& c, const uint32_t (&queries)[kDim / 16][4],
                             KeySpan (&seen)[2]) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[k][i] = queries[k][i];
    }
    this->clear();
    const RowPlan& row = plan.row[c.row];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t position = row.end - row.tokens + (lane() / 4 + half * 8) / group;
      seen[half].begin = args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
      seen[half].end = min(position + 1, row.end);
    }
  }
};

// grid: one block for each multiprocessor.
template <int kDim>
__global__ void __launch_bounds__(kStreamThreads, 1)
    stream_kernel(const __grid_constant__ AttentionArgs args, float* parts, uint32_t* arrivals) {
  extern __shared__ __align__(16) uint8_t rings[];
  __shared__ Plan plan;
  let_successor_start();
  // Read before the wait, as in attention_mma.cu: lengths, tables and the keys of earlier steps.
  make_plan(args, plan);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const Shares shares(int64_t{plan.start[args.reqs.padded]} * args.kv_heads,
                      int64_t{blocks} * kStreamWarps);
  Stream<kDim> stream{{}, args, plan, args.q_heads / args.kv_heads, parts, arrivals};
  stream.ring = static_cast<uint32_t>(__cvta_generic_to_shared(rings)) +
                static_cast<uint32_t>(warp * Stream<kDim>::kStages * Stream<kDim>::kStageBytes);
  stream.run(shares, static_cast<int32_t>(blockIdx.x) * kStreamWarps + warp);
  // Padded tokens read as zeros.
  const int32_t cols = args.q_heads * kDim;
  for (int32_t t = live_rows(args.tokens) + static_cast<int32_t>(blockIdx.x);
       t < args.tokens.padded; t += blocks) {
    auto* to = static_cast<__nv_bfloat16*>(args.out.data) + t * args.out.stride;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < cols; i += kStreamThreads) {
      to[i] = __float2bfloat16_rn(0.0f);
    }
  }
}

template <int kDim>
void load_stream() {
  load_kernel<&stream_kernel<kDim>, Stream<kDim>::kSharedBytes>("attention");
}

template <int kDim>
void launch_stream(StreamRef stream, const AttentionArgs& args) {
  const CudaLauncher& on = launcher(stream);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(on.sm_count));
  shape.threads = kStreamThreads;
  shape.shared_bytes = Stream<kDim>::kSharedBytes;
  launch<&stream_kernel<kDim>, Stream<kDim>::kSharedBytes>(
      stream, "attention", shape, args, static_cast<float*>(on.workspace), on.arrivals.attention);
}

}  // namespace

void load_attention_stream(int32_t head_dim) {
  by_head_dim(head_dim, [](auto dim) { load_stream<decltype(dim)::value>(); });
}

bool can_attend_stream(StreamRef stream, const AttentionArgs& args) {
  const CudaLauncher& on = launcher(stream);
  const int64_t workers = int64_t{on.sm_count} * kStreamWarps;
  const int64_t parts = workers * 2 * kWarpQueries * (args.head_dim + 2) * 4;
  const auto aligned = [](const Matrix& m, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(m.data) % static_cast<uint64_t>(bytes) == 0 &&
           m.stride * 2 % bytes == 0;
  };
  return args.reqs.padded <= kMaxStreamReqs && workers <= kMaxArrivals &&
         parts <= static_cast<int64_t>(on.workspace_bytes) && aligned(args.q, 4) &&
         aligned(args.out, 4);
}

void attention_stream(StreamRef stream, const AttentionArgs& args) {
  by_head_dim(args.head_dim, [&](auto dim) { launch_stream<decltype(dim)::value>(stream, args); });
}

}  // namespace refrain::kernels
