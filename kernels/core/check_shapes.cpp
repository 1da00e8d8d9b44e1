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

void check_shapes(const ProposeNgramArgs& args) {
  REFRAIN_CHECK(args.ids != nullptr && args.out != nullptr && args.num_drafts != nullptr &&
                    args.slots.history != nullptr && args.slots.history_range != nullptr &&
                    args.slots.params != nullptr && args.inputs.turn != nullptr,
                "propose_ngram: ids, out, num_drafts or the slots' state is null");
  REFRAIN_CHECK(args.least >= 1 && args.least <= args.most,
                "propose_ngram: looks up {} to {} tokens", args.least, args.most);
}

void check_shapes(const AcceptDraftsArgs& args) {
  REFRAIN_CHECK(args.ids != nullptr && args.num_drafts != nullptr &&
                    args.inputs.sample_start != nullptr && args.slots.last_token != nullptr &&
                    args.slots.history != nullptr && args.slots.history_range != nullptr,
                "accept_drafts: ids, num_drafts, sample_start or the slots' state is null");
}

void check_shapes(const ProposeDraftsArgs& args) {
  REFRAIN_CHECK(args.ids != nullptr && args.out != nullptr && args.num_drafts != nullptr &&
                    args.drafts != nullptr && args.draft_token != nullptr && args.most >= 1 &&
                    args.params != nullptr && args.inputs.turn != nullptr,
                "propose_drafts: ids, out, num_drafts or the slots' drafts are null");
}

void check_shapes(const DraftInputsArgs& args) {
  const DraftInputsArgs::Out& out = args.out;
  REFRAIN_CHECK(args.token != nullptr && args.history_range != nullptr && args.params != nullptr &&
                    args.block_table != nullptr && args.drafts != nullptr &&
                    args.row_slot != nullptr && args.row_flags != nullptr &&
                    args.step_live_logits != nullptr,
                "draft_inputs: the slots' state or the step's rows are null");
  REFRAIN_CHECK(out.token_ids != nullptr && out.positions != nullptr && out.kv_slots != nullptr &&
                    out.query_start != nullptr && out.seq_lens != nullptr &&
                    out.row_slot != nullptr && out.row_flags != nullptr,
                "draft_inputs: what the model reads is null");
  REFRAIN_CHECK(args.ahead >= 0 && args.ahead < args.most && args.block_size > 0,
                "draft_inputs: draft {} of {}, blocks of {} tokens", args.ahead, args.most,
                args.block_size);
  REFRAIN_CHECK(
      out.hidden_index == nullptr || (args.positions != nullptr && args.query_start != nullptr),
      "draft_inputs: the step's positions are null");
}

void check_shapes(const NextTokensArgs& args) {
  REFRAIN_CHECK(args.positions != nullptr && args.query_start != nullptr &&
                    args.row_slot != nullptr && args.history != nullptr && args.out != nullptr &&
                    args.history_cols > 0,
                "next_tokens: the step's tokens, the slots' history or the result are null");
}

void check_shapes(const ConcatArgs& args) {
  int64_t cols = 0;
  for (int32_t i = 0; i < kMaxParts; ++i) {
    if (args.cols[i] == 0) continue;
    check_matrix("concat", "part", args.parts[i], args.cols[i]);
    REFRAIN_CHECK(args.parts[i].dtype == args.out.dtype, "concat: part {} is of another type", i);
    cols += args.cols[i];
  }
  check_matrix("concat", "out", args.out, cols);
}

void check_shapes(const MapLogitsArgs& args) {
  check_matrix("map_logits", "in", args.in, args.small);
  check_matrix("map_logits", "out", args.out, args.vocab);
  REFRAIN_CHECK(args.offset != nullptr && args.in.dtype == DType::kFloat32 &&
                    args.out.dtype == DType::kFloat32,
                "map_logits: offsets are null, or logits are not float32");
}

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

void check_shapes(const LoraRowsArgs& args) {
  REFRAIN_CHECK(args.query_start != nullptr && args.row_slot != nullptr &&
                    args.sample_slot != nullptr && args.params != nullptr &&
                    args.of_tokens != nullptr && args.of_samples != nullptr &&
                    args.token_groups != nullptr && args.sample_groups != nullptr,
                "lora_rows: an operand is null");
}

namespace {

void check_places(const char* op, const LoraPlaces& places) {
  REFRAIN_CHECK(places.ranks != nullptr && places.parts >= 1 && places.parts <= kMaxLoraParts &&
                    places.rank_stride >= places.parts && places.max_rank >= 1 &&
                    places.count >= 1 && places.count <= kMaxLoraPlaces,
                "{}: {} places with {} parts of rank {} at most", op, places.count, places.parts,
                places.max_rank);
}

}  // namespace

void check_shapes(const LoraShrinkArgs& args) {
  check_matrix("lora_shrink", "in", args.in, args.cols);
  check_places("lora_shrink", args.places);
  REFRAIN_CHECK(
      args.adapter != nullptr && args.groups != nullptr && args.a != nullptr && args.out != nullptr,
      "lora_shrink: adapter, groups, a or out is null");
}

void check_shapes(const LoraEmbedArgs& args) {
  check_places("lora_embed", args.places);
  REFRAIN_CHECK(args.ids != nullptr && args.adapter != nullptr && args.a != nullptr &&
                    args.out != nullptr && args.places.parts == 1,
                "lora_embed: ids, adapter, a or out is null, or there are {} parts",
                args.places.parts);
  REFRAIN_CHECK(args.vocab_end - args.vocab_begin <= args.vocab_rows,
                "lora_embed: tokens {} to {} of {} rows", args.vocab_begin, args.vocab_end,
                args.vocab_rows);
}

void check_shapes(const LoraExpandArgs& args) {
  check_places("lora_expand", args.places);
  check_matrix("lora_expand", "out", args.out, args.part_end[args.places.parts - 1]);
  REFRAIN_CHECK(
      args.in != nullptr && args.adapter != nullptr && args.groups != nullptr && args.b != nullptr,
      "lora_expand: in, adapter, groups or b is null");
  for (int part = 0; part < args.places.parts; ++part)
    REFRAIN_CHECK(args.part_end[part] > (part == 0 ? 0 : args.part_end[part - 1]),
                  "lora_expand: part {} has no column", part);
}

void check_shapes(const LoraLinearArgs& args) {
  const char* op = "lora_linear";
  const LinearArgs& linear = args.linear;
  check_weight(op, linear.weight);
  check_matrix(op, "in", linear.in, linear.weight.k);
  check_matrix(op, "out", linear.out, args.silu_mul ? linear.weight.n / 2 : linear.weight.n);
  if (linear.residual.data != nullptr)
    check_matrix(op, "residual", linear.residual, linear.weight.n);
  check_places(op, args.places);
  REFRAIN_CHECK(args.adapter != nullptr && args.a != nullptr && args.b != nullptr &&
                    args.shrunk != nullptr &&
                    args.part_end[args.places.parts - 1] == linear.weight.n,
                "{}: adapter, a, b or shrunk is null, or the parts end at column {} of {}", op,
                args.part_end[args.places.parts - 1], linear.weight.n);
  REFRAIN_CHECK(!args.silu_mul || (linear.bias == nullptr && linear.residual.data == nullptr),
                "{}: SiLU·mul takes no bias and no residual", op);
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

void check_shapes(const ShareKeysArgs& args) {
  check_heads("share_keys", args.q_heads, args.kv_heads, args.head_dim, args.block_size);
  REFRAIN_CHECK(args.shares != nullptr && reinterpret_cast<uintptr_t>(args.shares) % 16 == 0,
                "share_keys: no shares, or not at a multiple of 16 bytes");
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

void check_planned(const AttentionArgs& args) {
  REFRAIN_CHECK(args.planned.plan != nullptr && args.planned.parts != nullptr &&
                    args.planned.shape.max_tokens >= args.tokens.padded,
                "attention: no plan for {} tokens", args.tokens.padded);
}

void check_shapes(const LinearRecurrenceArgs& args) {
  const char* op = "linear_recurrence";
  check_matrix(op, "gate", args.gate, args.cols);
  check_matrix(op, "in", args.in, args.cols);
  check_matrix(op, "out", args.out, args.cols);
  REFRAIN_CHECK(
      args.cols > 0 && args.state != nullptr && args.positions != nullptr && args.versions >= 1,
      "{}: no state", op);
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
  REFRAIN_CHECK((args.best != nullptr) == (args.best_parts > 0), "sample: {} parts with the best",
                args.best_parts);
  for (const GrammarMaskInputs& grammar : args.grammar) {
    REFRAIN_CHECK((grammar.mask == nullptr) == (grammar.ready == nullptr),
                  "sample: grammars' masks without their turns");
  }
  for (const SampleOutputs& out : args.outputs) {
    REFRAIN_CHECK(out.turn != nullptr && out.logprobs != nullptr && out.top_tokens != nullptr &&
                      out.top_logprobs != nullptr && out.tokens != nullptr,
                  "sample: an output is null");
  }
}

void check_shapes(const ScoreTokensArgs& args) {
  REFRAIN_CHECK(
      args.rows > 0 && args.vocab_size > 0 && args.shards * args.shard_cols >= args.vocab_size,
      "score_tokens: {} rows, {} shards of {} columns, {} tokens", args.rows, args.shards,
      args.shard_cols, args.vocab_size);
  const ScoreOutputs& out = args.outputs;
  REFRAIN_CHECK(args.logits != nullptr && args.tokens != nullptr && args.num_top != nullptr &&
                    out.logprobs != nullptr && out.ranks != nullptr && out.top_tokens != nullptr &&
                    out.top_logprobs != nullptr,
                "score_tokens: an operand is null");
}

void check_shapes(const PoolArgs& args) {
  check_matrix("pool", "in", args.in, args.cols);
  REFRAIN_CHECK(args.cols > 0 && (args.state == nullptr) == (args.pooling == Pooling::kLast),
                "pool: a state for what keeps none, or none for what does");
  for (const PoolOutputs& out : args.outputs)
    REFRAIN_CHECK(out.turn != nullptr && out.pooled != nullptr, "pool: an output is null");
}

void check_shapes(const PublishLayerArgs& args) {
  const auto word = reinterpret_cast<uintptr_t>(args.flag);
  REFRAIN_CHECK(args.turn != nullptr && word != 0 && word % sizeof(uint64_t) == 0,
                "publish_layer: no flag, or one that is no whole word");
  for (const uint8_t* block : args.blocks)
    REFRAIN_CHECK(block != nullptr, "publish_layer: a step block is null");
}

void check_shapes(const RowDistancesArgs& args) {
  check_matrix("row_distances", "got", args.got, args.cols);
  check_matrix("row_distances", "expected", args.expected, args.cols);
  REFRAIN_CHECK(args.got.dtype == args.expected.dtype && args.out != nullptr,
                "row_distances: got is {}, expected {}", to_string(args.got.dtype),
                to_string(args.expected.dtype));
}

}  // namespace refrain::kernels
