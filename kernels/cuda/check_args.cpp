#include "kernels/cuda/check_args.h"

#include <algorithm>

#include "kernels/cuda/limits.h"
#include "kernels/cuda/ops.h"
#include "runtime/base/check.h"

namespace refrain::kernels::cuda {
namespace {

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }

void check_matrix(const char* op, const char* name, const Matrix& m, int64_t cols) {
  REFRAIN_CHECK(m.data != nullptr, "{}: {} is null", op, name);
  REFRAIN_CHECK(is_float(m.dtype), "{}: {} is {}, the CUDA kernels take float32 and bfloat16", op,
                name, to_string(m.dtype));
  REFRAIN_CHECK(m.stride >= cols, "{}: rows of {} lie {} apart but have {} columns", op, name,
                m.stride, cols);
}

void check_weight(const char* op, const Weight& w) {
  REFRAIN_CHECK(w.data != nullptr && w.n > 0 && w.k > 0, "{}: weight [{}, {}] is empty", op, w.n,
                w.k);
  REFRAIN_CHECK(is_float(w.dtype), "{}: weights are {}, the CUDA kernels take float32 and bfloat16",
                op, to_string(w.dtype));
  REFRAIN_CHECK(w.layout == WeightLayout::kRowMajor, "{}: the CUDA kernels take row-major weights",
                op);
}

void check_norm(const char* op, int32_t cols) {
  REFRAIN_CHECK(cols > 0 && cols <= kMaxNormCols,
                "{}: rows of {} columns; the CUDA kernel takes {}", op, cols, kMaxNormCols);
}

void check_heads(const char* op, int32_t q_heads, int32_t kv_heads, int32_t head_dim,
                 int32_t block_size) {
  REFRAIN_CHECK(kv_heads > 0 && q_heads > 0 && head_dim > 0 && block_size > 0,
                "{}: {} query heads, {} KV heads of {}, blocks of {} tokens", op, q_heads, kv_heads,
                head_dim, block_size);
  REFRAIN_CHECK(head_dim <= kMaxHeadDim, "{}: head_dim {}; the CUDA kernel takes up to {}", op,
                head_dim, kMaxHeadDim);
}

}  // namespace

void check_args(const PrepareInputsArgs& args) {
  REFRAIN_CHECK(args.block != nullptr && args.layout.max_reqs <= kMaxStepReqs,
                "prepare_inputs: {} rows at most; the CUDA kernel takes {}", args.layout.max_reqs,
                kMaxStepReqs);
}

void check_args(const EmbedArgs& args) {
  check_weight("embed", args.table);
  check_matrix("embed", "out", args.out, args.table.k);
}

void check_args(const RmsNormArgs& args) {
  check_matrix("rms_norm", "in", args.in, args.cols);
  check_matrix("rms_norm", "out", args.out, args.cols);
  check_norm("rms_norm", args.cols);
}

void check_args(const AddRmsNormArgs& args) {
  check_matrix("add_rms_norm", "residual", args.residual, args.cols);
  check_matrix("add_rms_norm", "delta", args.delta, args.cols);
  check_matrix("add_rms_norm", "out", args.out, args.cols);
  check_norm("add_rms_norm", args.cols);
}

void check_args(const AddArgs& args) {
  check_matrix("add", "a", args.a, args.cols);
  check_matrix("add", "b", args.b, args.cols);
  check_matrix("add", "out", args.out, args.cols);
}

void check_args(const LinearArgs& args) {
  check_weight("linear", args.weight);
  check_matrix("linear", "in", args.in, args.weight.k);
  check_matrix("linear", "out", args.out, args.weight.n);
  if (args.residual.data != nullptr) {
    check_matrix("linear", "residual", args.residual, args.weight.n);
  }
}

void check_args(const SiluMulArgs& args) {
  check_matrix("silu_mul", "in", args.in, int64_t{2} * args.cols);
  check_matrix("silu_mul", "out", args.out, args.cols);
}

void check_args(const RopeKvWriteArgs& args) {
  const char* op = "rope_kv_write";
  check_heads(op, args.q_heads, args.kv_heads, args.head_dim, args.block_size);
  check_matrix(op, "qkv", args.qkv,
               (int64_t{args.q_heads} + int64_t{2} * args.kv_heads) * args.head_dim);
  check_matrix(op, "cache", {args.cache, args.cache_dtype, args.head_dim}, args.head_dim);
  REFRAIN_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
                "{}: rotary_dim {} of head_dim {}", op, args.rotary_dim, args.head_dim);
}

void check_args(const AttentionArgs& args) {
  const char* op = "attention";
  check_heads(op, args.q_heads, args.kv_heads, args.head_dim, args.block_size);
  const int64_t cols = int64_t{args.q_heads} * args.head_dim;
  check_matrix(op, "q", args.q, cols);
  check_matrix(op, "out", args.out, cols);
  check_matrix(op, "cache", {const_cast<void*>(args.cache), args.cache_dtype, cols}, cols);
  REFRAIN_CHECK(args.q_heads % args.kv_heads == 0 && args.q_heads / args.kv_heads <= kMaxGroup,
                "{}: {} query heads over {} KV heads (at most {} each, the same for all)", op,
                args.q_heads, args.kv_heads, kMaxGroup);
}

void check_args(const SelectRowsArgs& args) {
  check_matrix("select_rows", "in", args.in, args.cols);
  check_matrix("select_rows", "out", args.out, args.cols);
}

void check_args(const SampleArgs& args) {
  REFRAIN_CHECK(args.vocab_size > 0 && args.vocab_size <= kMaxVocab,
                "sample: a vocabulary of {}; the CUDA kernel takes up to {}", args.vocab_size,
                kMaxVocab);
  REFRAIN_CHECK(args.shards * args.shard_cols >= args.vocab_size,
                "sample: {} shards of {} columns hold fewer than {} tokens", args.shards,
                args.shard_cols, args.vocab_size);
  REFRAIN_CHECK(args.outputs.logprobs != nullptr && args.outputs.top_tokens != nullptr &&
                    args.outputs.top_logprobs != nullptr && args.outputs.tokens != nullptr,
                "sample: an output is null");
}

void check_args(const FusedLinearArgs& args) {
  const char* op = "fused_linear";
  const LinearArgs& linear = args.linear;
  const int64_t k = linear.weight.k;
  check_weight(op, linear.weight);
  check_matrix(op, "in", linear.in, k);
  check_matrix(op, "out", linear.out, args.silu_mul ? linear.weight.n / 2 : linear.weight.n);
  REFRAIN_CHECK(linear.rows.padded <= kFewRows, "{}: {} rows; the CUDA kernel takes {}", op,
                linear.rows.padded, kFewRows);
  REFRAIN_CHECK(linear.weight.dtype == DType::kBFloat16 && linear.in.dtype == DType::kBFloat16,
                "{}: the CUDA kernel takes bfloat16 inputs and weights", op);
  REFRAIN_CHECK(k % 8 == 0 && linear.in.stride % 8 == 0, "{}: K {} and stride {} in units of 8", op,
                k, linear.in.stride);
  REFRAIN_CHECK(!args.silu_mul || (linear.weight.n % 16 == 0 && linear.bias == nullptr &&
                                   linear.residual.data == nullptr),
                "{}: SiLU·mul of {} outputs takes whole groups of 8, no bias and no residual", op,
                linear.weight.n);
  REFRAIN_CHECK(args.push.size <= kMaxPeerRanks && args.pull.size <= kMaxPeerRanks,
                "{}: exchanges between {} ranks; the CUDA kernel takes {}", op,
                std::max(args.push.size, args.pull.size), kMaxPeerRanks);
  REFRAIN_CHECK(
      args.push.size == 0 || (args.norm == nullptr && !args.silu_mul &&
                              linear.residual.data == nullptr && linear.weight.n % 4 == 0),
      "{}: pushes a plain output of whole groups of 4 columns", op);
  if (args.norm == nullptr) {
    REFRAIN_CHECK(args.delta.data == nullptr, "{}: delta without norm", op);
    return;
  }
  REFRAIN_CHECK(k <= kMaxFusedNormCols && k * linear.rows.padded <= kMaxFusedNormElements,
                "{}: a norm of {} rows of {}; the CUDA kernel takes {} columns and {} elements", op,
                linear.rows.padded, k, kMaxFusedNormCols, kMaxFusedNormElements);
  if (args.delta.data == nullptr) return;
  check_matrix(op, "delta", args.delta, k);
  check_matrix(op, "sum_out", args.sum_out, k);
  REFRAIN_CHECK(args.sum_out.data != linear.in.data && args.sum_out.data != args.delta.data &&
                    args.delta.dtype == DType::kBFloat16 && args.sum_out.dtype == DType::kBFloat16,
                "{}: delta and sum_out are bfloat16, and sum_out has memory of its own", op);
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
