#pragma once
// The ops of the CUDA kernel table, one per file or family of files; kernel_table.cpp puts them in
// their slots. Each enqueues on the stream, captured or not, with a launch shape that depends on
// the counts of rows in its arguments alone.

#include "kernels/core/draft_args.h"
#include "kernels/core/kernel_table.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels {

void prepare_inputs(StreamRef stream, const PrepareInputsArgs& args);
void propose_ngram(StreamRef stream, const ProposeNgramArgs& args);
void accept_drafts(StreamRef stream, const AcceptDraftsArgs& args);
void propose_drafts(StreamRef stream, const ProposeDraftsArgs& args);
void draft_inputs(StreamRef stream, const DraftInputsArgs& args);
void next_tokens(StreamRef stream, const NextTokensArgs& args);
void concat(StreamRef stream, const ConcatArgs& args);
void map_logits(StreamRef stream, const MapLogitsArgs& args);
void embed(StreamRef stream, const EmbedArgs& args);
void rms_norm(StreamRef stream, const RmsNormArgs& args);
void add_rms_norm(StreamRef stream, const AddRmsNormArgs& args);
void add(StreamRef stream, const AddArgs& args);
void linear(StreamRef stream, const LinearArgs& args);
void lora_rows(StreamRef stream, const LoraRowsArgs& args);
void lora_shrink(StreamRef stream, const LoraShrinkArgs& args);
void lora_embed(StreamRef stream, const LoraEmbedArgs& args);
void lora_expand(StreamRef stream, const LoraExpandArgs& args);
// bfloat16 whose rows start at multiples of 16 bytes.
void lora_shrink_mma(StreamRef stream, const LoraShrinkArgs& args);
void lora_expand_mma(StreamRef stream, const LoraExpandArgs& args);
void lora_linear(StreamRef stream, const LoraLinearArgs& args);
// Of it: the rows' products with a.
void lora_shrink_spread(StreamRef stream, const LoraLinearArgs& args);
void silu_mul(StreamRef stream, const SiluMulArgs& args);
void fold_norm(StreamRef stream, const FoldNormArgs& args);
void rope_kv_write(StreamRef stream, const RopeKvWriteArgs& args);
// Of the kernel table only where wants_key_shares().
void share_keys(StreamRef stream, const ShareKeysArgs& args);
int64_t key_shares_ints();
void attention(StreamRef stream, const AttentionArgs& args);
void plain_attention(StreamRef stream, const AttentionArgs& args);
void planned_attention(StreamRef stream, const AttentionArgs& args);
void cascade_attention(StreamRef stream, const AttentionArgs& args);
void flashinfer_attention(StreamRef stream, const AttentionArgs& args);
void linear_recurrence(StreamRef stream, const LinearRecurrenceArgs& args);
void select_rows(StreamRef stream, const SelectRowsArgs& args);
void best_tokens(StreamRef stream, const BestTokensArgs& args);
void sample(StreamRef stream, const SampleArgs& args);
void score_tokens(StreamRef stream, const ScoreTokensArgs& args);
void pool(StreamRef stream, const PoolArgs& args);
void publish_layer(StreamRef stream, const PublishLayerArgs& args);
void kv_rows(StreamRef stream, const KvRowsArgs& args);
void row_distances(StreamRef stream, const RowDistancesArgs& args);
void fused_linear(StreamRef stream, const FusedLinearArgs& args);
// out = in + what the ranks pushed, summed: the launch before a fused_linear with a pull.
void add_pulled_sum(StreamRef stream, const PeerSum& sum, const Matrix& in, const Matrix& out,
                    const Rows& rows, int64_t cols);
void rope_attention(StreamRef stream, const RopeAttentionArgs& args);
bool can_rope_attend(int64_t head_dim, int64_t rotary_dim);
void rope_attention_mma(StreamRef stream, const RopeAttentionArgs& args);  // of it: not so few rows

// Of sample: the plainly greedy rows among many. False, and nothing launched: few rows.
bool sample_greedy_rows(StreamRef stream, const SampleArgs& args);

// The lowerings of linear. can_fuse_few: as fused_linear, at most kFewRows rows, aligned bfloat16.
// can_cluster: at most kClusterRows rows, aligned bfloat16, K of whole groups of 64 columns; with
// SiLU·mul weights of whole groups of 32 outputs.
bool can_fuse_few(const LinearArgs& args);
bool can_cluster(const LinearArgs& args);
// can_linear_silu: with SiLU·mul, at most kSiluRows rows, for the rest as can_cluster.
// fuses_silu: FewRows::fuses_silu.
bool can_linear_silu(const LinearArgs& args);
bool fuses_silu(int32_t rows);
void linear_silu(StreamRef stream, const LinearArgs& args);
// can_linear_best: with the best of each row, likewise, weights of whole groups of 16 outputs.
bool can_linear_best(const LinearArgs& args);
void linear_best(StreamRef stream, const FusedLinearArgs& args);
bool can_cluster_adapters(const LoraLinearArgs& args);
void linear_cluster(StreamRef stream, const FusedLinearArgs& args);
void linear_simple(StreamRef stream, const LinearArgs& args);  // any type and alignment, slow

// The lowerings of attention. can_attend_mma: bfloat16, head_dim 32, 64, 80, 96 or 128, aligned.
// can_attend_flashinfer, of those: on Hopper, is_flash_head, no window, rows of q and out at
// multiples of 16 bytes; for the rows of more than `short_tokens` tokens, all else is left alone.
// `beside`: it may run beside the kernel launched before it, which has the others.
// can_attend_stream, of those: a decode batch for attention_stream, rows of more tokens left out;
// wants_key_shares: whether it may be for so many requests or fewer. can_attend_prefix, of those of
// can_attend_flashinfer: attention_prefix makes the parts of the prefix that a plan's rows share,
// with which attention_stream begins (`behind_prefix`). load_*: kernels, before the first batch
// that wants them.
bool can_attend_mma(const AttentionArgs& args);
void attention_mma(StreamRef stream, const AttentionArgs& args, bool flashinfer,
                   bool behind_prefix);
constexpr bool is_flash_head(int32_t head_dim) { return head_dim == 64 || head_dim == 128; }
bool can_attend_flashinfer(StreamRef stream, const AttentionArgs& args);
void attention_flashinfer(StreamRef stream, const AttentionArgs& args, int32_t short_tokens,
                          bool beside);
bool can_attend_stream(StreamRef stream, const AttentionArgs& args);
void attention_stream(StreamRef stream, const AttentionArgs& args, bool beside, bool behind_prefix);
bool wants_key_shares(StreamRef stream, int32_t reqs, int32_t kv_heads, int32_t block_size);
void load_attention_stream(int32_t head_dim);
bool can_attend_prefix(StreamRef stream, const AttentionArgs& args);
void attention_prefix(StreamRef stream, const AttentionArgs& args);
void load_attention_prefix(int32_t head_dim);
void load_cascade_attention(StreamRef stream, const AttentionArgs& args);
void attention_simple(StreamRef stream, const AttentionArgs& args);

}  // namespace refrain::kernels
