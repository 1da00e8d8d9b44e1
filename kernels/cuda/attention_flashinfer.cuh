#pragma once
// FlashInfer's attention kernel for Hopper (FlashAttention-3: Shah et al., 2024) over our paged
// cache. Its tile schedulers are ours: each block finds its tiles from what is on the device, so
// that the launch shape depends on the key alone.

#pragma nv_diagnostic push
#pragma nv_diag_suppress 20012  // an annotation without effect in CUTLASS; in our code an error
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#pragma nv_diagnostic pop

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace refrain::kernels {

struct ScoreScale {
  float sm_scale = 1;  // FlashInfer's name
};

// `launch` with the size of a head as a constant, of those of is_flash_head().
template <class Launch>
void by_flash_head(int32_t head_dim, const Launch& launch) {
  if (head_dim == 64) return launch(std::integral_constant<int, 64>());
  launch(std::integral_constant<int, 128>());
}

// A warp group for each 64 queries of a tile, and one that copies. Epilogue and Tiles: templates of
// Traits and kTileQueries.
template <int kDim, bool kCausal, template <class> class EpilogueOf, template <int> class TilesOf>
struct FlashKernel {
  static constexpr int kTileQueries = kDim == 64 ? 192 : 128, kTileKeys = kDim == 64 ? 96 : 128;
  using Element = cutlass::bfloat16_t;
  using Traits =
      flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/false, kDim, kDim, kTileQueries,
                                        kTileKeys, /*NUM_STAGES=*/2, Element, Element, Element,
                                        int32_t, flashinfer::StandardAttention>;
  using Mainloop = flashinfer::SparseCollectiveMainloop<ScoreScale, Traits, kCausal>;
  using Epilogue = EpilogueOf<Traits>;
  using Tiles = TilesOf<kTileQueries>;
  static constexpr auto kKernel =
      &flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits,
                                            /*LEFT_SLIDING_WINDOW=*/false, kCausal, Tiles>;
  static constexpr size_t kSharedBytes = sizeof(typename Traits::SharedStorage);

  static void load() { load_kernel<kKernel, kSharedBytes>("attention"); }

  static void launch_tiles(StreamRef stream, const AttentionArgs& args,
                           const typename Epilogue::Params& epilogue,
                           const typename Tiles::Params& tiles) {
    const int64_t page = int64_t{args.block_size} * kDim, value_at = args.kv_heads * page;
    const auto* cache = static_cast<const Element*>(args.cache);
    const auto q =
        flashinfer::get_gmem_layout(args.tokens.padded, args.q_heads, kDim, args.q.stride, kDim);
    const auto kv = flashinfer::get_gmem_layout(0, args.kv_heads, kDim, kDim, page);
    const typename Mainloop::Params mainloop = Mainloop::to_underlying_arguments(
        {static_cast<const Element*>(args.q.data), q, cache, kv, cache + value_at, kv,
         args.block_table, /*window_left=*/-1, 2 * value_at, 2 * value_at,
         static_cast<uint32_t>(args.block_size), ScoreScale{args.scale}});
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(launcher(stream).sm_count));
    shape.threads = Traits::NUM_THREADS;
    shape.shared_bytes = kSharedBytes;
    launch<kKernel, kSharedBytes>(stream, "attention", shape, mainloop, epilogue, tiles);
  }
};

}  // namespace refrain::kernels
