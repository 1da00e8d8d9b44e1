#pragma once
// The kernel table of one instruction set: each slot checks its arguments and launches its op. Ops
// that share rows among threads run on one thread when there is one row.

#include "kernels/core/check_shapes.h"
#include "kernels/host/draft_head.h"
#include "kernels/host/drafts.h"
#include "kernels/host/kv_rows.h"
#include "kernels/host/lora_rows.h"
#include "kernels/host/ops/attention.h"
#include "kernels/host/ops/elementwise.h"
#include "kernels/host/ops/embed.h"
#include "kernels/host/ops/linear.h"
#include "kernels/host/ops/lora.h"
#include "kernels/host/ops/norm.h"
#include "kernels/host/ops/planned_attention.h"
#include "kernels/host/ops/pool.h"
#include "kernels/host/ops/publish.h"
#include "kernels/host/ops/recurrence.h"
#include "kernels/host/ops/rope_kv_write.h"
#include "kernels/host/ops/sample.h"
#include "kernels/host/ops/score.h"
#include "kernels/host/prepare_inputs.h"
#include "kernels/host/row_distances.h"

namespace refrain::kernels {

template <class S>
KernelTable make_table() {
  KernelTable table;
  table.prepare_inputs = &launch_prepare_inputs;
  table.propose_ngram = [](StreamRef stream, const ProposeNgramArgs& args) {
    check_shapes(args);
    launch_propose_ngram(stream, args);
  };
  table.accept_drafts = [](StreamRef stream, const AcceptDraftsArgs& args) {
    check_shapes(args);
    launch_accept_drafts(stream, args);
  };
  table.propose_drafts = [](StreamRef stream, const ProposeDraftsArgs& args) {
    check_shapes(args);
    launch_propose_drafts(stream, args);
  };
  table.draft_inputs = [](StreamRef stream, const DraftInputsArgs& args) {
    check_shapes(args);
    launch_draft_inputs(stream, args);
  };
  table.next_tokens = [](StreamRef stream, const NextTokensArgs& args) {
    check_shapes(args);
    launch_next_tokens(stream, args);
  };
  table.concat = [](StreamRef stream, const ConcatArgs& args) {
    check_shapes(args);
    launch_concat(stream, args);
  };
  table.map_logits = [](StreamRef stream, const MapLogitsArgs& args) {
    check_shapes(args);
    launch_map_logits(stream, args);
  };
  table.kv_rows = &launch_kv_rows;
  table.row_distances = &launch_row_distances;
  table.embed = [](StreamRef stream, const EmbedArgs& args) {
    check_args(args);
    launch<&embed<S>>(stream, args, "embed", args.rows.padded == 1);
  };
  table.rms_norm = [](StreamRef stream, const RmsNormArgs& args) {
    check_args(args);
    launch<&rms_norm<S>>(stream, args, "rms_norm", args.rows.padded == 1);
  };
  table.add_rms_norm = [](StreamRef stream, const AddRmsNormArgs& args) {
    check_args(args);
    launch<&add_rms_norm<S>>(stream, args, "add_rms_norm", args.rows.padded == 1);
  };
  table.add = [](StreamRef stream, const AddArgs& args) {
    check_args(args);
    launch<&add<S>>(stream, args, "add", args.rows.padded == 1);
  };
  table.linear = [](StreamRef stream, const LinearArgs& args) {
    check_args(args);
    launch<&linear<S>>(stream, args, "linear");
  };
  table.lora_rows = [](StreamRef stream, const LoraRowsArgs& args) {
    check_shapes(args);
    launch<&lora_rows>(stream, args, "lora_rows", true);
  };
  table.lora_shrink = [](StreamRef stream, const LoraShrinkArgs& args) {
    check_shapes(args);
    launch<&lora_shrink<S>>(stream, args, "lora_shrink");
  };
  table.lora_embed = [](StreamRef stream, const LoraEmbedArgs& args) {
    check_shapes(args);
    launch<&lora_embed>(stream, args, "lora_embed", args.rows.padded == 1);
  };
  table.lora_expand = [](StreamRef stream, const LoraExpandArgs& args) {
    check_shapes(args);
    launch<&lora_expand<S>>(stream, args, "lora_expand");
  };
  table.silu_mul = [](StreamRef stream, const SiluMulArgs& args) {
    check_args(args);
    launch<&silu_mul<S>>(stream, args, "silu_mul", args.rows.padded == 1);
  };
  table.rope_kv_write = [](StreamRef stream, const RopeKvWriteArgs& args) {
    check_args(args);
    launch<&rope_kv_write<S>>(stream, args, "rope_kv_write", args.rows.padded == 1);
  };
  table.attention = [](StreamRef stream, const AttentionArgs& args) {
    check_args(args);
    launch<&attention<S>>(stream, args, "attention");
  };
  table.planned_attention = [](StreamRef stream, const AttentionArgs& args) {
    check_args(args);
    check_planned(args);
    launch<&planned_attention<S>>(stream, args, "attention");
    launch<&merge_attention_parts<S>>(stream, args, "merge_attention_parts");
  };
  table.cascade_attention = table.planned_attention;
  table.linear_recurrence = [](StreamRef stream, const LinearRecurrenceArgs& args) {
    check_args(args);
    launch<&linear_recurrence<S>>(stream, args, "linear_recurrence");
  };
  table.select_rows = [](StreamRef stream, const SelectRowsArgs& args) {
    check_args(args);
    launch<&select_rows<S>>(stream, args, "select_rows", args.rows.padded == 1);
  };
  table.best_tokens = [](StreamRef stream, const BestTokensArgs& args) {
    check_args(args);
    launch<&best_tokens<S>>(stream, args, "best_tokens");
  };
  table.sample = [](StreamRef stream, const SampleArgs& args) {
    check_args(args);
    launch<&sample<S>>(stream, args, "sample", args.rows.padded == 1);
  };
  table.score_tokens = [](StreamRef stream, const ScoreTokensArgs& args) {
    check_args(args);
    launch<&score_tokens<S>>(stream, args, "score_tokens");
  };
  table.pool = [](StreamRef stream, const PoolArgs& args) {
    check_shapes(args);
    launch<&pool<S>>(stream, args, "pool");
  };
  table.publish_layer = [](StreamRef stream, const PublishLayerArgs& args) {
    check_shapes(args);
    launch<&publish_layer>(stream, args, "publish_layer", true);
  };
  return table;
}

}  // namespace refrain::kernels
