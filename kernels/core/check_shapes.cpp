#include "kernels/core/check_shapes.h"

#include "runtime/base/check.h"

namespace refrain::kernels {

void check_matrix(const char* op, const char* name, const Matrix& m, int64_t cols) {
  REFRAIN_CHECK(m.data != nullptr, "{}: {} is null", op, name);
  REFRAIN_CHECK(m.dtype == DType::kFloat32 || m.dtype == DType::kBFloat16,
                "{}: {} is {}, kernels take float32 and bfloat16", op, name, to_string(m.dtype));
  REFRAIN_CHECK(m.stride >= cols, "{}: rows of {} lie {} apart but have {} columns", op, name,
                m.stride, cols);
}

void check_weight(const char* op, const Weight& w) {
  REFRAIN_CHECK(w.data != nullptr && w.n > 0 && w.k > 0, "{}: weight [{}, {}] is empty", op, w.n,
                w.k);
  REFRAIN_CHECK(w.dtype == DType::kFloat32 || w.dtype == DType::kBFloat16,
                "{}: weights are {}, kernels take float32 and bfloat16", op, to_string(w.dtype));
}

namespace {

void check_heads(const char* op, int32_t q_heads, int32_t kv_heads, int32_t head_dim,
                 int32_t block_size) {
  REFRAIN_CHECK(kv_heads > 0 && q_heads > 0 && head_dim > 0 && block_size > 0,
                "{}: {} query heads, {} KV heads of {}, blocks of {} tokens", op, q_heads, kv_heads,
                head_dim, block_size);
}

}  // namespace

void check_shapes(const EmbedArgs& args) {
  check_weight("embed", args.table);
  check_matrix("embed", "out", args.out, args.table.k);
  REFRAIN_CHECK(args.vocab_end - args.vocab_begin <= args.table.n,
                "embed: tokens {} to {} of a table of {} rows", args.vocab_begin, args.vocab_end,
                args.table.n);
}

void check_shapes(const RmsNormArgs& args) {
  check_matrix("rms_norm", "in", args.in, args.cols);
  check_matrix("rms_norm", "out", args.out, args.cols);
}

void check_shapes(const AddRmsNormArgs& args) {
  check_matrix("add_rms_norm", "residual", args.residual, args.cols);
  check_matrix("add_rms_norm", "delta", args.delta, args.cols);
  check_matrix("add_rms_norm", "out", args.out, args.cols);
}

void check_shapes(const AddArgs& args) {
  check_matrix("add", "a", args.a, args.cols);
  check_matrix("add", "b", args.b, args.cols);
  check_matrix("add", "out", args.out, args.cols);
}

void check_shapes(const LinearArgs& args) {
  check_weight("linear", args.weight);
  check_matrix("linear", "in", args.in, args.weight.k);
  check_matrix("linear", "out", args.out, args.weight.n);
  if (args.residual.data != nullptr) {
    check_matrix("linear", "residual", args.residual, args.weight.n);
  }
}

void check_shapes(const SiluMulArgs& args) {
  check_matrix("silu_mul", "in", args.in, int64_t{2} * args.cols);
  check_matrix("silu_mul", "out", args.out, args.cols);
}

void check_shapes(const RopeKvWriteArgs& args) {
  const char* op = "rope_kv_write";
  check_heads(op, args.q_heads, args.kv_heads, args.head_dim, args.block_size);
  check_matrix(op, "qkv", args.qkv,
               (int64_t{args.q_heads} + int64_t{2} * args.kv_heads) * args.head_dim);
  check_matrix(op, "cache", {args.cache, args.cache_dtype, args.head_dim}, args.head_dim);
  REFRAIN_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
                "{}: rotary_dim {} of head_dim {}", op, args.rotary_dim, args.head_dim);
}

void check_shapes(const AttentionArgs& args) {
  const char* op = "attention";
  check_heads(op, args.q_heads, args.kv_heads, args.head_dim, args.block_size);
  const int64_t cols = int64_t{args.q_heads} * args.head_dim;
  check_matrix(op, "q", args.q, cols);
  check_matrix(op, "out", args.out, cols);
  check_matrix(op, "cache", {const_cast<void*>(args.cache), args.cache_dtype, cols}, cols);
  REFRAIN_CHECK(args.q_heads % args.kv_heads == 0,
                "{}: {} query heads over {} KV heads, not the same number for each", op,
                args.q_heads, args.kv_heads);
}

void check_shapes(const SelectRowsArgs& args) {
  check_matrix("select_rows", "in", args.in, args.cols);
  check_matrix("select_rows", "out", args.out, args.cols);
}

void check_shapes(const BestTokensArgs& args) {
  constexpr int32_t kMostTokens = 1 << 24;  // exact in float32
  check_matrix("best_tokens", "logits", args.logits, args.num_tokens);
  REFRAIN_CHECK(args.best != nullptr && args.params != nullptr, "best_tokens: best or params null");
  REFRAIN_CHECK(args.num_tokens >= 0 && args.first_token >= 0 &&
                    args.first_token <= kMostTokens - args.num_tokens,
                "best_tokens: {} tokens from {}", args.num_tokens, args.first_token);
}

void check_shapes(const SampleArgs& args) {
  REFRAIN_CHECK(args.shards * args.shard_cols >= args.vocab_size,
                "sample: {} shards of {} columns hold fewer than {} tokens", args.shards,
                args.shard_cols, args.vocab_size);
  REFRAIN_CHECK(args.vocab_size > 0, "sample: a vocabulary of {}", args.vocab_size);
  REFRAIN_CHECK(args.inputs.turn != nullptr, "sample: no turn");
  for (const SampleOutputs& out : args.outputs) {
    REFRAIN_CHECK(out.turn != nullptr && out.logprobs != nullptr && out.top_tokens != nullptr &&
                      out.top_logprobs != nullptr && out.tokens != nullptr,
                  "sample: an output is null");
  }
}

void check_shapes(const RowDistancesArgs& args) {
  check_matrix("row_distances", "got", args.got, args.cols);
  check_matrix("row_distances", "expected", args.expected, args.cols);
  REFRAIN_CHECK(args.got.dtype == args.expected.dtype && args.out != nullptr,
                "row_distances: got is {}, expected {}", to_string(args.got.dtype),
                to_string(args.expected.dtype));
}

}  // namespace refrain::kernels
