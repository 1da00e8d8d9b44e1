// Decode attention of many requests, bfloat16: all keys of all requests are one list of tiles of
// 16, cut into shares, one for each warp of the device. A warp walks its share, whatever requests
// and heads it crosses, with a ring of its own that the copy engine fills and that never runs
// empty; no barriers of the block. What a warp has of a request and head that others of its block
// share goes to shared memory, what a block has of one that other blocks share to a workspace, and
// the last of them to come adds the parts, in their order. Of rows behind a shared prefix the list
// has their own keys alone, and attention_prefix.cu the rest. The launch shape is that of the
// device; share_keys.cu has made the shares. Bound by memory, but for some 6 us of starting and
// adding up.

#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/tensor_map.h"

namespace refrain::kernels {
namespace {

using namespace stream;

// grid: one block for each multiprocessor.
template <int kDim, bool kBehindPrefix>
__global__ void __launch_bounds__(kStreamThreads, 1)
    stream_kernel(const __grid_constant__ AttentionArgs args,
                  const __grid_constant__ CUtensorMap cache, float* parts, uint32_t* arrivals,
                  bool beside) {
  extern __shared__ uint8_t memory[];
  __shared__ StreamShared shared;
  if (!beside) let_successor_start();
  Stream<kDim> stream(args, cache, shared, memory, parts, arrivals);
  if (threadIdx.x <= kStreamWarps) shared.arrivals[threadIdx.x] = 0;
  if (threadIdx.x % 32 == 0) {
    for (int slot = 0; slot < kSlots; ++slot) init_barrier(stream.full + slot * 8, 1);
    publish_barriers();
  }
  __syncwarp();
  // Read before the wait, as in attention_decode.cuh: counts, shares, tables and the keys of
  // earlier steps.
  const int32_t live = live_rows(args.tokens);
  stream.template run<kBehindPrefix>(static_cast<int32_t>(blockIdx.x), beside);
  // Padded tokens read as zeros.
  const int32_t cols = args.q_heads * kDim;
  for (int32_t t = live + static_cast<int32_t>(blockIdx.x); t < args.tokens.padded;
       t += static_cast<int32_t>(gridDim.x)) {
    auto* to = static_cast<__nv_bfloat16*>(args.out.data) + t * args.out.stride;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < cols; i += kStreamThreads) {
      to[i] = __float2bfloat16_rn(0.0f);
    }
  }
}

template <int kDim>
void load_stream() {
  load_kernel<&stream_kernel<kDim, false>, Stream<kDim>::kSharedBytes>("attention");
  if constexpr (is_flash_head(kDim))
    load_kernel<&stream_kernel<kDim, true>, Stream<kDim>::kSharedBytes>("attention");
}

template <int kDim, bool kBehindPrefix>
void launch_stream(StreamRef stream, const AttentionArgs& args, bool beside) {
  using S = Stream<kDim>;
  const CudaLauncher& on = launcher(stream);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(on.sm_count));
  shape.threads = kStreamThreads;
  shape.shared_bytes = S::kSharedBytes;
  // Rows of keys and of values: those of a block's KV heads one after the other. How many there
  // are is not known here; the block tables name none beyond.
  const TensorDim dims[] = {{kDim, 1, S::kAtomCols}, {int64_t{1} << 31, kDim, kStreamKeys}};
  launch<&stream_kernel<kDim, kBehindPrefix>, S::kSharedBytes>(
      stream, "attention", shape, args, make_tensor_map(args.cache, dims, true),
      static_cast<float*>(on.workspace), on.arrivals.attention, beside);
}

}  // namespace

void load_attention_stream(int32_t head_dim) {
  by_head_dim(head_dim, [](auto dim) { load_stream<decltype(dim)::value>(); });
}

bool can_attend_stream(StreamRef stream, const AttentionArgs& args) {
  const CudaLauncher& on = launcher(stream);
  static_assert(kMaxStreamBlocks <= kMaxArrivals);
  int64_t parts = 0;
  by_head_dim(args.head_dim, [&](auto dim) {
    parts = int64_t{on.sm_count} * 2 * Stream<decltype(dim)::value>::kPartBytes;
  });
  const auto aligned = [](const Matrix& m, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(m.data) % static_cast<uint64_t>(bytes) == 0 &&
           m.stride * 2 % bytes == 0;
  };
  return args.shares != nullptr && args.reqs.padded <= kMaxStreamReqs &&
         wants_key_shares(stream, args.reqs.padded, args.kv_heads, args.block_size) &&
         parts <= static_cast<int64_t>(on.workspace_bytes) && aligned(args.q, 4) &&
         aligned(args.out, 4);
}

void attention_stream(StreamRef stream, const AttentionArgs& args, bool beside,
                      bool behind_prefix) {
  by_head_dim(args.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (is_flash_head(kDim)) {
      if (behind_prefix) return launch_stream<kDim, true>(stream, args, beside);
    }
    launch_stream<kDim, false>(stream, args, beside);
  });
}

}  // namespace refrain::kernels
