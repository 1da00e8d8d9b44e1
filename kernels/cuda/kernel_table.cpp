#include "kernels/core/kernel_table.h"

#include <fmt/format.h>

#include "kernels/core/check_shapes.h"
#include "kernels/core/no_room.h"
#include "kernels/cuda/check_args.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/invariant.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/check.h"

namespace refrain::kernels {
namespace {

template <auto op, class Args>
void checked(StreamRef stream, const Args& args) {
  cuda::check_args(args);
  if constexpr (requires { args.rows.padded; }) {
    if (args.rows.padded == 0) return;
  }
  op(stream, args);
}

template <auto op>
void planned(StreamRef stream, const AttentionArgs& args) {
  cuda::check_args(args);
  check_planned(args);
  op(stream, args);
}

}  // namespace

const KernelTable& cuda_kernel_table() {
  static const KernelTable table = {
      .prepare_inputs = &checked<&prepare_inputs>,
      .propose_ngram = &checked<&propose_ngram>,
      .accept_drafts = &checked<&accept_drafts>,
      .propose_drafts = &checked<&propose_drafts>,
      .draft_inputs = &checked<&draft_inputs>,
      .next_tokens = &checked<&next_tokens>,
      .concat = &checked<&concat>,
      .map_logits = &checked<&map_logits>,
      .embed = &checked<&embed>,
      .rms_norm = &checked<&rms_norm>,
      .add_rms_norm = &checked<&add_rms_norm>,
      .add = &checked<&add>,
      .linear = &checked<&linear>,
      .lora_rows = &checked<&lora_rows>,
      .lora_shrink = &checked<&lora_shrink>,
      .lora_embed = &checked<&lora_embed>,
      .lora_expand = &checked<&lora_expand>,
      .silu_mul = &checked<&silu_mul>,
      .fold_norm = &fold_norm,
      .rope_kv_write = &checked<&rope_kv_write>,
      .share_keys =
          [](StreamRef stream, const ShareKeysArgs& args) {
            cuda::check_args(args);
            if (wants_key_shares(stream, args.reqs.padded, args.kv_heads, args.block_size))
              share_keys(stream, args);
          },
      .key_shares_ints = key_shares_ints(),
      .attention = &checked<&attention>,
      .plain_attention = &checked<&plain_attention>,
      .planned_attention = &planned<&planned_attention>,
      .cascade_attention = &planned<&cascade_attention>,
      .flashinfer_attention =
          [](StreamRef stream, const AttentionArgs& args) {
            cuda::check_flashinfer(args);
            planned<&flashinfer_attention>(stream, args);
          },
      .linear_recurrence = &checked<&linear_recurrence>,
      .select_rows = &checked<&select_rows>,
      .best_tokens = &checked<&best_tokens>,
      .sample = &checked<&sample>,
      .score_tokens = &checked<&score_tokens>,
      .pool = &checked<&pool>,
      .publish_layer = &checked<&publish_layer>,
      .kv_rows = &kv_rows,
      .row_distances = &checked<&row_distances>,
      .fused_linear = &checked<&fused_linear>,
      .lora_linear = &checked<&lora_linear>,
      .rope_attention = &checked<&rope_attention>,
      .few_rows = {kFewRows, kGemvRows, kClusterRows, kSiluRows, kUnitNormRows, kMaxFusedNormCols,
                   kMaxFusedNormElements, kMaxFusedGroup, kMaxRopeUnits, kMaxLoraCols,
                   kMaxPeerRanks, &can_rope_attend, &fuses_silu, kMaxWideBlocks},
      .planned_rows = &planned_rows,
      .row_tile = 128,  // of the library's products from some 500 rows on
  };
  return table;
}

const KernelTable& invariant_cuda_kernel_table() {
  static const KernelTable table = [] {
    KernelTable invariant = cuda_kernel_table();
    invariant.linear = &checked<&invariant_linear>;
    invariant.fold_norm = nullptr;
    invariant.share_keys = nullptr;
    invariant.attention = &checked<&invariant_attention>;
    invariant.plain_attention = &checked<&invariant_attention>;
    // What they would do depends on how many rows there are.
    invariant.fused_linear = nullptr;
    invariant.lora_linear = nullptr;
    invariant.rope_attention = nullptr;
    invariant.few_rows = {};
    return invariant;
  }();
  return table;
}

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it does not stick
    throw NoRoomForKernel(fmt::format("{}: no device memory for its code", call));
  }
  REFRAIN_CHECK(status == cudaSuccess, "{} failed: {} ({})", call, cudaGetErrorName(status),
                cudaGetErrorString(status));
}

}  // namespace refrain::kernels
