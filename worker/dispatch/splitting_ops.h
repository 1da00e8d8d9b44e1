#pragma once
// The names of all ops, in the order of worker/program/ops.h, which the compiler compares; any of
// them may be a splitting op (CG-19). Pure; any thread.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace refrain::worker {

inline constexpr std::array<std::string_view, 39> kOpNames = {"prepare_inputs",
                                                              "embed",
                                                              "rms_norm",
                                                              "add",
                                                              "add_rms_norm",
                                                              "linear",
                                                              "silu_mul",
                                                              "silu_gate",
                                                              "rope",
                                                              "kv_write",
                                                              "rope_kv_write",
                                                              "share_keys",
                                                              "attention",
                                                              "select_rows",
                                                              "best_tokens",
                                                              "sample",
                                                              "all_reduce",
                                                              "all_reduce_add_rms_norm",
                                                              "all_gather",
                                                              "fused_linear",
                                                              "rope_attention",
                                                              "linear_recurrence",
                                                              "propose_ngram",
                                                              "accept_drafts",
                                                              "propose_drafts",
                                                              "draft_inputs",
                                                              "lora_rows",
                                                              "lora_shrink",
                                                              "lora_embed",
                                                              "lora_expand",
                                                              "lora_linear",
                                                              "score_tokens",
                                                              "next_tokens",
                                                              "concat",
                                                              "map_logits",
                                                              "pool",
                                                              "gather_replicas",
                                                              "reduce_replicas",
                                                              "publish_layer"};

// Whether all are names of ops; the error of --splitting-ops.
Status check_splitting_ops(const std::vector<std::string>& splitting_ops);

}  // namespace refrain::worker
