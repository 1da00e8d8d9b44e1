#include "kernels/cuda/check_args.h"

#include <algorithm>

#include "kernels/core/check_shapes.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/check.h"

namespace refrain::kernels::cuda {
namespace {

void check_row_major(const char* op, const Weight& w) {
  REFRAIN_CHECK(w.layout == WeightLayout::kRowMajor, "{}: the CUDA kernels take row-major weights",
                op);
}

void check_norm(const char* op, int32_t cols) {
  REFRAIN_CHECK(cols > 0 && cols <= kMaxNormCols,
                "{}: rows of {} columns; the CUDA kernel takes {}", op, cols, kMaxNormCols);
}

void check_head_dim(const char* op, int32_t head_dim) {
  REFRAIN_CHECK(head_dim <= kMaxHeadDim, "{}: head_dim {}; the CUDA kernel takes up to {}", op,
                head_dim, kMaxHeadDim);
}

}  // namespace

void check_args(const PrepareInputsArgs& args) {
  REFRAIN_CHECK(args.blocks[0] != nullptr && args.blocks[1] != nullptr &&
                    args.block_copy != nullptr && args.inputs.turn != nullptr,
                "prepare_inputs: a step block, its copy or the turn is null");
  REFRAIN_CHECK(args.layout.max_reqs <= kMaxStepReqs,
                "prepare_inputs: {} rows at most; the CUDA kernel takes {}", args.layout.max_reqs,
                kMaxStepReqs);
  REFRAIN_CHECK(args.slots.history == nullptr || args.layout.max_reqs <= kMaxStepReqs / 2,
                "prepare_inputs: {} rows at most; the CUDA kernel takes {} with speculation",
                args.layout.max_reqs, kMaxStepReqs / 2);
}

void check_args(const ProposeNgramArgs& args) { check_shapes(args); }

void check_args(const AcceptDraftsArgs& args) { check_shapes(args); }

void check_args(const ProposeDraftsArgs& args) { check_shapes(args); }

void check_args(const DraftInputsArgs& args) { check_shapes(args); }

void check_args(const NextTokensArgs& args) { check_shapes(args); }
void check_args(const ConcatArgs& args) { check_shapes(args); }
void check_args(const MapLogitsArgs& args) { check_shapes(args); }

void check_args(const EmbedArgs& args) {
  check_shapes(args);
  check_row_major("embed", args.table);
}

void check_args(const RmsNormArgs& args) {
  check_shapes(args);
  check_norm("rms_norm", args.cols);
}

void check_args(const AddRmsNormArgs& args) {
  check_shapes(args);
  check_norm("add_rms_norm", args.cols);
}

void check_args(const AddArgs& args) { check_shapes(args); }

void check_args(const LinearArgs& args) {
  check_shapes(args);
  check_row_major("linear", args.weight);
}

void check_args(const LoraRowsArgs& args) { check_shapes(args); }
void check_args(const LoraShrinkArgs& args) { check_shapes(args); }
void check_args(const LoraEmbedArgs& args) { check_shapes(args); }
void check_args(const LoraExpandArgs& args) { check_shapes(args); }

void check_args(const SiluMulArgs& args) { check_shapes(args); }

void check_args(const RopeKvWriteArgs& args) {
  check_shapes(args);
  check_head_dim("rope_kv_write", args.head_dim);
}

void check_args(const ShareKeysArgs& args) { check_shapes(args); }

void check_args(const AttentionArgs& args) {
  check_shapes(args);
  check_head_dim("attention", args.head_dim);
  REFRAIN_CHECK(args.q_heads / args.kv_heads <= kMaxGroup,
                "attention: {} query heads over {} KV heads (at most {} each)", args.q_heads,
                args.kv_heads, kMaxGroup);
}

void check_flashinfer(const AttentionArgs& args) {
  const auto wide = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool bf16 = args.cache_dtype == DType::kBFloat16 && args.q.dtype == DType::kBFloat16 &&
                    args.out.dtype == DType::kBFloat16;
  REFRAIN_CHECK(bf16 && (args.head_dim == 64 || args.head_dim == 128) && wide(args.cache) &&
                    wide(args.q.data) && args.q.stride % 8 == 0 && wide(args.out.data) &&
                    args.out.stride == int64_t{args.q_heads} * args.head_dim,
                "FLASHINFER: takes bfloat16 and heads of 64 or 128, the result's rows one after "
                "the other");
}

void check_args(const LinearRecurrenceArgs& args) { check_shapes(args); }
void check_args(const SelectRowsArgs& args) { check_shapes(args); }

void check_args(const BestTokensArgs& args) { check_shapes(args); }

void check_args(const RowDistancesArgs& args) { check_shapes(args); }

void check_args(const ScoreTokensArgs& args) { check_shapes(args); }
void check_args(const PoolArgs& args) { check_shapes(args); }

void check_args(const PublishLayerArgs& args) { check_shapes(args); }

void check_args(const SampleArgs& args) {
  check_shapes(args);
  REFRAIN_CHECK(args.vocab_size <= kMaxVocab,
                "sample: a vocabulary of {}; the CUDA kernel takes up to {}", args.vocab_size,
                kMaxVocab);
}

void check_args(const FusedLinearArgs& args) {
  const char* op = "fused_linear";
  const LinearArgs& linear = args.linear;
  const int64_t k = linear.weight.k;
  check_weight(op, linear.weight);
  check_row_major(op, linear.weight);
  check_matrix(op, "in", linear.in, k);
  check_matrix(op, "out", linear.out, args.silu_mul ? linear.weight.n / 2 : linear.weight.n);
  const bool plain = (args.norm == nullptr || args.unit_norm) && args.push.size == 0;
  if (args.best != nullptr) {
    REFRAIN_CHECK(can_linear_best(linear) && plain && args.norm == nullptr && !args.silu_mul &&
                      args.pull.size == 0 && args.best_parts >= kMaxWideBlocks &&
                      args.live_logits != nullptr && args.first_token >= 0 &&
                      args.num_tokens >= 0 && args.num_tokens <= linear.weight.n,
                  "{}: the best of {} parts of {} rows, {} outputs of {} columns", op,
                  args.best_parts, linear.rows.padded, linear.weight.n, k);
    return;
  }
  const int32_t most = !plain           ? kFewRows
                       : args.unit_norm ? kUnitNormRows
                       : args.silu_mul  ? kSiluRows
                                        : kClusterRows;
  REFRAIN_CHECK(linear.rows.padded <= most, "{}: {} rows; the CUDA kernel takes {}", op,
                linear.rows.padded, most);
  REFRAIN_CHECK(
      (linear.rows.padded <= kFewRows && !args.unit_norm) ||
          (args.silu_mul && linear.rows.padded > kClusterRows
               ? can_linear_silu(linear)
               : can_cluster(linear) && (!args.silu_mul || linear.weight.n % 32 == 0)),
      "{}: {} rows of {} columns, {} outputs; more than {} rows are taken in whole groups "
      "of 64 columns, SiLU·mul of 32 outputs",
      op, linear.rows.padded, k, linear.weight.n, kFewRows);
  REFRAIN_CHECK(linear.weight.dtype == DType::kBFloat16 && linear.in.dtype == DType::kBFloat16,
                "{}: the CUDA kernel takes bfloat16 inputs and weights", op);
  REFRAIN_CHECK(k % 8 == 0 && linear.in.stride % 8 == 0, "{}: K {} and stride {} in units of 8", op,
                k, linear.in.stride);
  REFRAIN_CHECK(!args.silu_mul || (linear.weight.n % 16 == 0 && linear.bias == nullptr &&
                                   linear.residual.data == nullptr),
                "{}: SiLU·mul of {} outputs takes whole groups of 8, no bias and no residual", op,
                linear.weight.n);
  REFRAIN_CHECK(!args.unit_norm || (args.norm != nullptr && plain && args.delta.data == nullptr),
                "{}: a sum beside a unit norm, or no norm", op);
  REFRAIN_CHECK(args.push.size <= kMaxPeerRanks && args.pull.size <= kMaxPeerRanks,
                "{}: exchanges between {} ranks; the CUDA kernel takes {}", op,
                std::max(args.push.size, args.pull.size), kMaxPeerRanks);
  REFRAIN_CHECK(
      args.push.size == 0 || (args.norm == nullptr && !args.silu_mul &&
                              linear.residual.data == nullptr && linear.weight.n % 4 == 0),
      "{}: pushes a plain output of whole groups of 4 columns", op);
  REFRAIN_CHECK(
      args.send.size == 0 || (args.send.size <= kMaxPeerRanks && can_cluster(linear) && plain &&
                              args.norm == nullptr && !args.silu_mul &&
                              linear.residual.data == nullptr && linear.weight.n % 8 == 0),
      "{}: {} rows of {} outputs sent to {} ranks; the CUDA kernel sends a plain output "
      "of whole groups of 8 columns to {}",
      op, linear.rows.padded, linear.weight.n, args.send.size, kMaxPeerRanks);
  if (args.norm == nullptr) {
    REFRAIN_CHECK(args.delta.data == nullptr, "{}: delta without norm", op);
    return;
  }
  REFRAIN_CHECK(
      args.unit_norm || (k <= kMaxFusedNormCols && k * linear.rows.padded <= kMaxFusedNormElements),
      "{}: a norm of {} rows of {}; the CUDA kernel takes {} columns and {} elements", op,
      linear.rows.padded, k, kMaxFusedNormCols, kMaxFusedNormElements);
  if (args.delta.data == nullptr) return;
  check_matrix(op, "delta", args.delta, k);
  check_matrix(op, "sum_out", args.sum_out, k);
  REFRAIN_CHECK(args.sum_out.data != linear.in.data && args.sum_out.data != args.delta.data &&
                    args.delta.dtype == DType::kBFloat16 && args.sum_out.dtype == DType::kBFloat16,
                "{}: delta and sum_out are bfloat16, and sum_out has memory of its own", op);
}

void check_args(const LoraLinearArgs& args) {
  const char* op = "lora_linear";
  check_shapes(args);
  const LinearArgs& linear = args.linear;
  check_row_major(op, linear.weight);
  REFRAIN_CHECK(
      can_cluster_adapters(args),
      "{}: {} rows of {} columns, {} outputs, {} places of rank {}; the CUDA kernel takes "
      "up to {} rows of bfloat16, whole groups of 64 columns, parts of whole groups of 64 "
      "outputs (SiLU·mul: two of 16), ranks that are multiples of 8 and {} in all",
      op, linear.rows.padded, linear.weight.k, linear.weight.n, args.places.count,
      args.places.max_rank, kClusterRows, kMaxLoraCols);
}

void check_args(const RopeAttentionArgs& args) {
  const char* op = "rope_attention";
  check_args(args.rope);
  check_args(args.attention);
  REFRAIN_CHECK(args.attention.uniform_query_len == 1, "{}: takes one token a request", op);
  REFRAIN_CHECK(args.rope.qkv.dtype == DType::kBFloat16 &&
                    args.rope.cache_dtype == DType::kBFloat16 &&
                    args.attention.out.dtype == DType::kBFloat16,
                "{}: takes bfloat16", op);
  REFRAIN_CHECK(can_rope_attend(args.rope.head_dim, args.rope.rotary_dim) &&
                    args.rope.q_heads / args.rope.kv_heads <= kMaxFusedGroup,
                "{}: {} query heads over {} KV heads of {}, {} of them rotated", op,
                args.rope.q_heads, args.rope.kv_heads, args.rope.head_dim, args.rope.rotary_dim);
}

}  // namespace refrain::kernels::cuda
