#pragma once
// The table a device offers: one function per op, the same names on every device. A function
// enqueues its kernel on the stream (or records it, while the stream captures). A null slot means
// the device cannot run that op; program validation finds it when the worker starts.

#include "kernels/core/draft_args.h"
#include "kernels/core/lora_args.h"
#include "kernels/core/op_args.h"
#include "kernels/core/pool_args.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels {

// The device's own stream: a HostLauncher* on the host, a cudaStream_t on CUDA.
struct StreamRef {
  void* native = nullptr;
};

template <class Args>
using Kernel = void (*)(StreamRef stream, const Args& args);

// What the kernels for few rows can take; the pass that lowers a Program to them asks
// (few_rows.cpp).
struct FewRows {
  int32_t max_rows = 0;         // 0: this device has none of them
  int32_t max_rows_of_one = 0;  // of a group of one rank, for which they are faster up to here
  int32_t max_plain_rows = 0;   // of a fused_linear without a norm, K and n of whole groups of 64
  int32_t max_silu_rows = 0;    // of those with SiLU·mul
  int32_t max_unit_norm_rows = 0;  // of those with a unit norm; of more it is slower
  int64_t max_norm_cols = 0, max_norm_elements = 0;  // of one launch with a norm: K, M * K
  int32_t max_group = 0;                             // rope_attention: query heads a KV head
  int32_t max_rope_units = 0;  // rows times KV heads; of more, attention alone is faster
  int32_t max_lora_cols = 0;   // lora_linear, up to max_plain_rows: places * max_rank; 0: none
  int32_t max_ranks = 0;  // of a group whose sums go from one fused_linear to the next; 0: none
  bool (*takes_head_dim)(int64_t head_dim, int64_t rotary_dim) = nullptr;
  // Whether a fused_linear of so many rows with SiLU·mul is faster than linear and silu_mul.
  bool (*fuses_silu)(int32_t rows) = nullptr;
  int32_t best_parts = 0;  // FusedLinearArgs::best of those rows; 0: none
};

struct KernelTable {
  Kernel<PrepareInputsArgs> prepare_inputs = nullptr;
  Kernel<ProposeNgramArgs> propose_ngram = nullptr;
  Kernel<AcceptDraftsArgs> accept_drafts = nullptr;
  Kernel<ProposeDraftsArgs> propose_drafts = nullptr;
  Kernel<DraftInputsArgs> draft_inputs = nullptr;
  Kernel<NextTokensArgs> next_tokens = nullptr;
  Kernel<ConcatArgs> concat = nullptr;
  Kernel<MapLogitsArgs> map_logits = nullptr;
  Kernel<EmbedArgs> embed = nullptr;
  Kernel<RmsNormArgs> rms_norm = nullptr;
  Kernel<AddRmsNormArgs> add_rms_norm = nullptr;
  Kernel<AddArgs> add = nullptr;
  Kernel<LinearArgs> linear = nullptr;
  Kernel<LoraRowsArgs> lora_rows = nullptr;
  Kernel<LoraShrinkArgs> lora_shrink = nullptr;
  Kernel<LoraEmbedArgs> lora_embed = nullptr;
  Kernel<LoraExpandArgs> lora_expand = nullptr;
  Kernel<SiluMulArgs> silu_mul = nullptr;
  Kernel<FoldNormArgs> fold_norm = nullptr;  // of weights, once loaded; no op of a Program
  Kernel<RopeKvWriteArgs> rope_kv_write = nullptr;
  Kernel<ShareKeysArgs> share_keys = nullptr;  // null: attention of this device needs no shares
  int64_t key_shares_ints = 0;
  Kernel<AttentionArgs> attention = nullptr;
  Kernel<AttentionArgs> plain_attention = nullptr;  // no library's kernels; null: nor has attention
  Kernel<AttentionArgs> planned_attention = nullptr;     // by the plan in AttentionArgs::planned
  Kernel<AttentionArgs> cascade_attention = nullptr;     // the same where decodes share a prefix
  Kernel<AttentionArgs> flashinfer_attention = nullptr;  // likewise; null: not of this device
  Kernel<LinearRecurrenceArgs> linear_recurrence = nullptr;
  Kernel<SelectRowsArgs> select_rows = nullptr;
  Kernel<BestTokensArgs> best_tokens = nullptr;
  Kernel<SampleArgs> sample = nullptr;
  Kernel<ScoreTokensArgs> score_tokens = nullptr;
  Kernel<PoolArgs> pool = nullptr;
  Kernel<PublishLayerArgs> publish_layer = nullptr;
  Kernel<KvRowsArgs> kv_rows = nullptr;  // for audits, as the next; no op of a Program
  Kernel<RowDistancesArgs> row_distances = nullptr;
  // Of up to 256 rows (lower_few_rows, lower_some_rows); null where few_rows.max_rows is 0.
  Kernel<FusedLinearArgs> fused_linear = nullptr;
  Kernel<LoraLinearArgs> lora_linear = nullptr;
  Kernel<RopeAttentionArgs> rope_attention = nullptr;
  FewRows few_rows;
  // A linear of `rows` rows runs the algorithm chosen for this many, the most of a range of row
  // counts; null: nothing is chosen by rows.
  int32_t (*planned_rows)(int32_t rows) = nullptr;
  // Rows of a tile of matrix products of many rows: a few rows more than whole tiles cost as much
  // as a tile.
  int32_t row_tile = 1;
};

}  // namespace refrain::kernels
