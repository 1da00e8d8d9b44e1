#pragma once
// What a warp of attention_stream.cu does: its ring, its share of the tiles, parts of requests and
// heads that it shares with others.

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/key_shares.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels::stream {

inline constexpr int kSlots = 4;   // of a warp's ring: keys and values of a tile in turns
inline constexpr int kBatch = 32;  // tiles that a warp looks up at once, one a lane

// A part of a request and KV head, in shared memory or the workspace: each query's sums, and after
// all of them the queries' maxima and totals.
template <int kDim>
struct Part {
  static constexpr int kStride = kDim + 8;  // so that queries begin at different banks
  static constexpr int kFloats = kWarpQueries * (kStride + 2);
  float* at;

  __device__ float* sums(int query) const { return at + query * kStride; }
  __device__ float* highest(int query) const { return at + kWarpQueries * kStride + query; }
  __device__ float* total(int query) const { return highest(query) + kWarpQueries; }
};

struct StreamShared {
  Plan plan;
  uint64_t full[kStreamWarps][kSlots];
  // Parts of this block that have come: by the unit's first warp, and of a unit that an earlier
  // block begins.
  uint32_t arrivals[kStreamWarps + 1];
};

template <int kDim>
struct Stream : WarpSoftmax<kDim, kStreamKeys, TileLayout::kSwizzled> {
  using Math = WarpSoftmax<kDim, kStreamKeys, TileLayout::kSwizzled>;
  using Math::acc, Math::highest, Math::lane, Math::q, Math::sum;
  using Math::kAtomBytes, Math::kAtomCols, Math::kDimTiles;
  static_assert(kStreamQueries == kWarpQueries && kBatch == 32);
  static constexpr int kAtoms = (kDim + kAtomCols - 1) / kAtomCols;
  static constexpr int kSlotBytes = kAtoms * kAtomBytes;
  static constexpr int kRingBytes = kSlots * kSlotBytes;
  static constexpr int kPartBytes = Part<kDim>::kFloats * 4;
  static constexpr int kSharedBytes = 1024 + kStreamWarps * (kRingBytes + kPartBytes);
  static_assert(kSharedBytes + sizeof(StreamShared) <= kMaxSharedBytes && kPartBytes <= kRingBytes);

  const AttentionArgs& args;
  const CUtensorMap& cache;
  StreamShared& shared;
  float* parts;        // of the workspace: [blocks][2]
  uint32_t* arrivals;  // [blocks] parts that have come, of the unit that the block ends with
  int32_t group;
  uint8_t* rings;    // [warps]
  float* own_parts;  // [warps] parts
  uint32_t ring, full;
  // Of tile batch * kBatch + lane of this warp's share: the row of the cache where its keys begin.
  int32_t row = 0, next_row = 0;

  __device__ Stream(const AttentionArgs& args, const CUtensorMap& cache, StreamShared& shared,
                    uint8_t* memory, float* parts, uint32_t* arrivals)
      : args(args),
        cache(cache),
        shared(shared),
        parts(parts),
        arrivals(arrivals),
        group(args.q_heads / args.kv_heads),
        rings(memory + (1024 - shared_address(memory) % 1024) % 1024),
        own_parts(reinterpret_cast<float*>(rings + kStreamWarps * kRingBytes)),
        ring(shared_address(rings) + static_cast<uint32_t>(warp() * kRingBytes)),
        full(shared_address(shared.full[warp()])) {}

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ const RowPlan& row_of(const Cursor& c) const { return shared.plan.row[c.row]; }
  __device__ BlockShares shares() const { return {shared.plan.bounds, kStreamWarps}; }

  // Starts the copy of item i of the share: the keys of tile i / 2, or its values. The lane that
  // has looked the tile up does it.
  __device__ void fetch(int32_t item) const {
    if (lane() != item / 2 % kBatch) return;
    const auto slot = static_cast<uint32_t>(item % kSlots);
    const uint32_t to = ring + slot * kSlotBytes, barrier = full + slot * 8;
    expect_bytes(barrier, kSlotBytes);
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3}], [%4];" ::"r"(to + atom * kAtomBytes),
          "l"(&cache), "r"(atom * kAtomCols), "r"(row + item % 2 * args.kv_heads * args.block_size),
          "r"(barrier)
          : "memory");
    }
  }

  // Queries (token, head) of the cursor's request and KV head; those past the last read as 0.
  __device__ void load_queries(const Cursor& c, uint32_t (&to)[kDim / 16][4]) const {
    const RowPlan& of = row_of(c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query < of.tokens * group) {
        const auto* p = static_cast<const uint32_t*>(args.q.data) +
                        ((of.token + query / group) * args.q.stride +
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
           (row_of(c).token + query / group) * args.out.stride +
           (int64_t{c.head} * group + query % group) * kDim + col;
  }

  __device__ void write(const Cursor& c) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= row_of(c).tokens * group) continue;
      const float inverse = 1.0f / sum[half];
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        *reinterpret_cast<uint32_t*>(out(c, query, d * 8 + lane() % 4 * 2)) =
            pack_halves(acc[d][half * 2] * inverse, acc[d][half * 2 + 1] * inverse);
      }
    }
  }

  __device__ void write_part(const Cursor& c, const Part<kDim>& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= row_of(c).tokens * group) continue;
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        *reinterpret_cast<float2*>(to.sums(query) + d * 8 + lane() % 4 * 2) =
            make_float2(acc[d][half * 2], acc[d][half * 2 + 1]);
      }
      if (lane() % 4 == 0) {
        *to.highest(query) = highest[half];
        *to.total(query) = sum[half];
      }
    }
  }

  // Adds parts [first, last], part(i) each, in shared memory if kHere: to(query, column, maximum,
  // total, the sums of four columns).
  template <bool kHere, class PartOf, class To>
  __device__ void merge(const Cursor& c, int32_t first, int32_t last, PartOf part, To to) const {
    const auto load = [](const auto* p) { return kHere ? *p : __ldcg(p); };
    const int32_t count = row_of(c).tokens * group * kDim;
    for (int32_t e = lane() * 4; e < count; e += 128) {
      const int32_t query = e / kDim;
      float top = -INFINITY, total = 0;
      float4 value = {0, 0, 0, 0};
#pragma unroll 4
      for (int32_t i = first; i <= last; ++i) {
        const Part<kDim> p = part(i);
        const float high = load(p.highest(query)), own = load(p.total(query));
        const float4 x = load(reinterpret_cast<const float4*>(p.sums(query) + e % kDim));
        const float both = fmaxf(top, high);
        const float old = top == -INFINITY ? 0.0f : exp2f(top - both);
        const float fresh = high == -INFINITY ? 0.0f : exp2f(high - both);
        top = both;
        total = total * old + own * fresh;
        value.x = value.x * old + x.x * fresh, value.y = value.y * old + x.y * fresh;
        value.z = value.z * old + x.z * fresh, value.w = value.w * old + x.w * fresh;
      }
      to(query, e % kDim, top, total, value);
    }
  }

  // Of a unit's first worker the part is of the end of its share, so that its ring is free; of the
  // others it is that of the beginning. Likewise of blocks.
  __device__ Part<kDim> part_of_warp(int32_t of_warp, bool ends_share) const {
    if (ends_share) return {reinterpret_cast<float*>(rings + of_warp * kRingBytes)};
    return {own_parts + of_warp * Part<kDim>::kFloats};
  }
  __device__ Part<kDim> part_of_block(int32_t block, bool ends_share) const {
    return {parts + (2 * int64_t{block} + (ends_share ? 1 : 0)) * Part<kDim>::kFloats};
  }

  // The tiles of a request and head that this worker has are done. The last of the block's warps to
  // come adds their parts, the last of the blocks theirs.
  __device__ void finish_unit(const Cursor& c, int32_t worker) {
    this->finish();
    const int32_t block = worker / kStreamWarps;
    Cursor begin = c;
    begin.tile = 0;
    const int64_t first_tile = begin.index(shared.plan, args.kv_heads);
    const int32_t first = shares().owner(first_tile, block);
    const int32_t last = shares().owner(first_tile + c.tiles - 1, block);
    if (first == last) return write(c);
    const int32_t first_here = max(first, block * kStreamWarps);
    const int32_t last_here = min(last, shares().last(block));
    const auto merge_here = [&](auto to) {
      merge<true>(
          c, first_here, last_here,
          [&](int32_t w) { return part_of_warp(w % kStreamWarps, w == first); }, to);
    };
    const auto write_out = [&](int query, int col, float, float total, const float4& value) {
      const float inverse = 1.0f / total;
      auto* to = reinterpret_cast<uint32_t*>(out(c, query, col));
      to[0] = pack_halves(value.x * inverse, value.y * inverse);
      to[1] = pack_halves(value.z * inverse, value.w * inverse);
    };
    if (first_here < last_here) {
      write_part(c, part_of_warp(warp(), worker == first));
      uint32_t* come = shared.arrivals + (first < first_here ? kStreamWarps : first % kStreamWarps);
      if (!comes_last<true>(come, last_here - first_here + 1)) return;
    }
    const int32_t first_block = first / kStreamWarps, last_block = last / kStreamWarps;
    if (first_block == last_block) return merge_here(write_out);
    const Part<kDim> of_block = part_of_block(block, block == first_block);
    if (first_here == last_here) {
      write_part(c, of_block);
    } else {
      merge_here([&](int query, int col, float top, float total, const float4& value) {
        *reinterpret_cast<float4*>(of_block.sums(query) + col) = value;
        if (col == 0) *of_block.highest(query) = top, *of_block.total(query) = total;
      });
    }
    if (!comes_last<false>(arrivals + first_block, last_block - first_block + 1)) return;
    merge<false>(
        c, first_block, last_block, [&](int32_t b) { return part_of_block(b, b == first_block); },
        write_out);
    if (lane() == 0) arrivals[first_block] = 0;
  }
  // The warp's part is written. kHere: the others are warps of this block.
  template <bool kHere>
  __device__ static bool comes_last(uint32_t* count, int32_t all) {
    const auto fence = [] { kHere ? __threadfence_block() : __threadfence(); };
    __syncwarp();
    uint32_t come = 0;
    if (lane() == 0) {
      fence();
      come = atomicAdd(count, 1u) + 1;
      fence();
    }
    return __shfl_sync(~0u, come, 0) == static_cast<uint32_t>(all);
  }

  // What lies after the last key is whatever it is, and nothing times NaN is NaN.
  __device__ static void clear_values(uint32_t values, int32_t from) {
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      const uint32_t end = values + (atom + 1) * kAtomBytes;
      for (uint32_t at = end - (kStreamKeys - from) * 128 + lane() * 16; at < end; at += 512) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the next copy writes there
    __syncwarp();
  }

  // kBehindPrefix: some rows share a prefix. beside: the next kernel runs beside this one, and
  // needs what the one before has written.
  template <bool kBehindPrefix>
  __device__ void run(int32_t block, bool beside) {
    const auto& from = *reinterpret_cast<const KeyShares*>(args.shares);
    const WarpShare& own = from.warp[block * kStreamWarps + warp()];
    row = __ldcg(own.cache_row + lane());
    const int32_t begin = __ldcg(&own.begin), count = __ldcg(&own.count);
    const int32_t stable = __ldcg(&own.stable);
    const int4 first = __ldcg(reinterpret_cast<const int4*>(&own.first));
    constexpr int kWords = (kMaxPlanWords + kStreamThreads - 1) / kStreamThreads;
    const int32_t words = Plan::words(args.reqs.padded);
    uint4 plan[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const auto at = static_cast<int32_t>(threadIdx.x) + i * kStreamThreads;
      if (at < words) plan[i] = __ldcg(reinterpret_cast<const uint4*>(&from.plan) + at);
    }
    const auto look_up_batch = [&](int32_t batch) {
      const int32_t tile = batch * kBatch + lane();
      if (tile >= count) return 0;
      return cache_row(args, shared.plan,
                       find(shared.plan, args.reqs.padded, args.kv_heads, begin + tile));
    };
    int32_t fetched = 0;
    const auto fetch_next = [&] {
      if (fetched == 2 * count) return;
      if (fetched > 0 && fetched % (2 * kBatch) == 0) {
        row = next_row;
        next_row = look_up_batch(fetched / (2 * kBatch) + 1);
      }
      fetch(fetched++);
    };
    // Before the wait, keys of earlier steps alone.
    for (int i = 0; i < kSlots && i / 2 < stable; ++i) fetch_next();
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const auto at = static_cast<int32_t>(threadIdx.x) + i * kStreamThreads;
      if (at < words) shared.plan.data()[at] = plan[i];
    }
    __syncthreads();
    wait_for_predecessor();
    if (beside) let_successor_start();
    if (count == 0) return;
    while (fetched < min(kSlots, 2 * count)) fetch_next();
    Cursor now{first.x, first.y, first.z, first.w};
    next_row = look_up_batch(1);
    uint32_t next_q[kDim / 16][4];
    load_queries(now, next_q);
    const float scale = args.scale * kLog2E;
    KeySpan seen[2];
    bool fresh = true;
    for (int32_t c = 0; c < count; ++c) {
      if (fresh) {
        start_unit<kBehindPrefix>(now, next_q, seen);
        Cursor unit = now;  // the next request and head, if they are this worker's
        unit.tile = unit.tiles - 1;
        if (c + now.tiles - now.tile < count) {
          unit.next(shared.plan, args.kv_heads);
          load_queries(unit, next_q);
        }
      }
      const auto slot = static_cast<uint32_t>(2 * c % kSlots);
      const uint32_t phase = 2 * c / kSlots % 2;
      const uint32_t keys = ring + slot * kSlotBytes, values = keys + kSlotBytes;
      float s[2][4];
      wait_barrier(full + slot * 8, phase);
      this->score(keys, s);
      __syncwarp();  // the slot is free
      fetch_next();
      this->soften(first_key(shared.plan, now), seen, scale, s);
      wait_barrier(full + slot * 8 + 8, phase);
      const int32_t here = row_of(now).end - first_key(shared.plan, now);
      if (here < kStreamKeys) clear_values(values, here);
      this->add_values(values, s);
      __syncwarp();
      fetch_next();
      fresh = now.tile + 1 == now.tiles || c + 1 == count;
      if (fresh) finish_unit(now, block * kStreamWarps + warp());
      if (c + 1 < count) now.next(shared.plan, args.kv_heads);
    }
  }

  // What attention_prefix.cu has made of the keys before the row's own.
  __device__ void begin_with_prefix(const Cursor& c) {
    const RowPlan& of = row_of(c);
    const int32_t parts = __ldcg(args.planned.plan + kPlanPrefixParts);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = lane() / 4 + half * 8;
      if (query >= of.tokens * group) continue;
      for (int32_t i = 0; i < parts; ++i) {
        const float* part =
            part_of(args, of.token + query / group, i, c.head * group + query % group);
        const float high = __ldcg(part + kDim), top = fmaxf(highest[half], high);
        const float old = exp2f(highest[half] - top), fresh = exp2f(high - top);
        highest[half] = top;
        const float total = lane() % 4 == 0 ? __ldcg(part + kDim + 1) : 0.0f;  // of all lanes once
        sum[half] = sum[half] * old + total * fresh;
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
          const auto* x = reinterpret_cast<const float2*>(part + d * 8 + lane() % 4 * 2);
          const float2 more = __ldcg(x);
          acc[d][half * 2] = acc[d][half * 2] * old + more.x * fresh;
          acc[d][half * 2 + 1] = acc[d][half * 2 + 1] * old + more.y * fresh;
        }
      }
    }
  }

  template <bool kBehindPrefix>
  __device__ void start_unit(const Cursor& c, const uint32_t (&queries)[kDim / 16][4],
                             KeySpan (&seen)[2]) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[k][i] = queries[k][i];
    }
    this->clear();
    const RowPlan& of = row_of(c);
    if (kBehindPrefix && of.begin > 0 && c.tile == 0) begin_with_prefix(c);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t position = of.end - of.tokens + (lane() / 4 + half * 8) / group;
      seen[half].begin = args.sliding_window > 0 ? max(0, position - args.sliding_window + 1) : 0;
      seen[half].end = min(position + 1, of.end);
    }
  }
};

}  // namespace refrain::kernels::stream
