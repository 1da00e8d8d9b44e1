// The part of ProgramBuilder that ends a Program: sampling, or the pooling of hidden states.

#include "worker/program/builder.h"

namespace refrain::worker {

SampleOp ProgramBuilder::declare_sample(ValueId logits, Dim rows) {
  SampleOp op;
  op.logits = logits;
  op.turn = step_.turn;
  op.params = step_.params;
  op.in_prompt = step_.in_prompt;
  op.output_count = step_.output_count;
  op.vocab_size = program_.vocab_size;
  const auto named = [this](const char* name) { return prefix_ + name; };
  op.out_turn = output(named("sampled.turn").c_str(), DType::kInt32, Dim::constant(1));
  op.tokens = output(named("sampled").c_str(), DType::kInt32, rows);
  op.logprobs = output(named("sampled.logprobs").c_str(), DType::kFloat32, rows);
  op.top_tokens =
      output(named("sampled.top_tokens").c_str(), DType::kInt32, rows, kernels::kMaxLogprobs);
  op.top_logprobs =
      output(named("sampled.top_logprobs").c_str(), DType::kFloat32, rows, kernels::kMaxLogprobs);
  return op;
}

ValueId ProgramBuilder::pinned_input(const char* name, Dim rows, int64_t cols) {
  return define({.name = name,
                 .kind = ValueKind::kInput,
                 .dtype = DType::kInt32,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kPinned});
}

void ProgramBuilder::sample(ValueId logits) {
  const int64_t vocab = program_.vocab_size;
  const Dim rows = rows_of(step_.logit_index);
  const ValueId bias_token = of_slots("slots.bias_token", DType::kInt32, kernels::kMaxLogitBias);
  const ValueId bias_value = of_slots("slots.bias_value", DType::kFloat32, kernels::kMaxLogitBias);
  const ValueId allowed_mask = of_slots("slots.allowed_mask", DType::kInt32, (vocab + 31) / 32);
  const ValueId grammar_mask = pinned_input("grammar.mask", rows, (vocab + 31) / 32);
  const ValueId grammar_ready = pinned_input("grammar.ready", rows, 1);
  const ValueId scratch = define({.name = "sample.scratch",
                                  .dtype = DType::kFloat32,
                                  .rows = rows,
                                  .cols = vocab,
                                  .storage = Storage::kDevice});
  SampleOp op = declare_sample(logits, rows);
  op.seq_lens = speculates() ? step_.sample_lens : step_.seq_lens;
  op.row_slot = speculates() ? step_.sample_slot : step_.row_slot;
  op.row_flags = speculates() ? step_.sample_flags : step_.row_flags;
  if (!speculates()) op.last_token = step_.last_token;
  op.bias_token = bias_token;
  op.bias_value = bias_value;
  op.allowed_mask = allowed_mask;
  op.scratch = scratch;
  op.grammar_mask = grammar_mask;
  op.grammar_ready = grammar_ready;
  op.tells_logits = limits_.tells_logits ? 1 : 0;
  op.tells_processed = limits_.tells_processed ? 1 : 0;
  program_.ops.emplace_back(op);
  if (speculates()) accept_drafts(op);
}

void ProgramBuilder::pool(ValueId hidden, kernels::Pooling pooling) {
  const int64_t cols = program_.value(hidden).cols;
  PoolOp op;
  op.in = hidden;
  op.turn = step_.turn;
  op.query_start = step_.query_start;
  op.seq_lens = step_.seq_lens;
  op.row_slot = step_.row_slot;
  op.row_flags = step_.row_flags;
  if (pooling != kernels::Pooling::kLast)
    op.state = of_slots("slots.pooled", DType::kFloat32, cols);
  op.out_turn = output("pooled.turn", DType::kInt32, Dim::constant(1));
  op.pooled = output("pooled", DType::kFloat32, Dim::requests(), cols);
  op.pooling = pooling;
  program_.ops.emplace_back(op);
}

}  // namespace refrain::worker
