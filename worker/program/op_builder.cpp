#include "worker/program/op_builder.h"

namespace refrain::worker {

ValueId OpBuilder::embed(const std::string& name, ValueId ids, ValueId table) {
  const ValueId out = activation(name, builder_.rows(ids), builder_.cols(table));
  builder_.emit(EmbedOp{.ids = ids,
                        .table = table,
                        .out = out,
                        .vocab_begin = 0,
                        .vocab_end = builder_.rows(table).scale});
  return out;
}

ValueId OpBuilder::rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                            int64_t group) {
  const ValueId out = activation(name, builder_.rows(in), builder_.cols(in));
  builder_.emit(RmsNormOp{
      .in = in, .weight = weight, .out = out, .eps = static_cast<float>(eps), .group = group});
  return out;
}

ValueId OpBuilder::add(const std::string& name, ValueId residual, ValueId delta) {
  const ValueId out = activation(name, builder_.rows(residual), builder_.cols(residual));
  builder_.emit(AddOp{.a = residual, .b = delta, .out = out});
  return out;
}

ValueId OpBuilder::linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                          Parallel parallel, SplitUnit unit) {
  const ValueId out = activation(name, builder_.rows(in), builder_.rows(weight).scale);
  builder_.emit(LinearOp{
      .in = in, .weight = weight, .bias = bias, .out = out, .parallel = parallel, .unit = unit});
  return out;
}

ValueId OpBuilder::silu_gate(const std::string& name, ValueId gate, ValueId up) {
  const ValueId out = activation(name, builder_.rows(gate), builder_.cols(gate));
  builder_.emit(SiluGateOp{.gate = gate, .up = up, .out = out});
  return out;
}

ValueId OpBuilder::concat(const std::string& name, const std::vector<ValueId>& parts) {
  ConcatOp op;
  int64_t cols = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    op.parts.at(i) = parts[i];
    cols += builder_.value(parts[i]).cols;
  }
  op.out = activation(name, builder_.rows(parts.front()), cols);
  builder_.emit(op);
  return op.out;
}

ValueId OpBuilder::gather_replicas(const std::string& name, ValueId in) {
  Dim rows = builder_.rows(in);
  rows.scale *= builder_.program().replicas;
  const ValueId out = activation(name, rows, builder_.cols(in));
  builder_.emit(GatherReplicasOp{.in = in, .out = out});
  return out;
}

ValueId OpBuilder::reduce_replicas(const std::string& name, ValueId in) {
  Dim rows = builder_.rows(in);
  rows.scale /= builder_.program().replicas;
  const ValueId out = activation(name, rows, builder_.cols(in));
  builder_.emit(ReduceReplicasOp{.in = in, .out = out});
  return out;
}

ValueId OpBuilder::rope(const std::string& name, ValueId in, ValueId table, int64_t heads,
                        const AttentionShape& shape) {
  const ValueId out = activation(name, builder_.rows(in), heads * shape.head_dim);
  builder_.emit(RopeOp{.in = in,
                       .positions = scope_.step.positions,
                       .table = table,
                       .out = out,
                       .heads = heads,
                       .head_dim = shape.head_dim,
                       .rotary_dim = shape.rotary_dim});
  return out;
}

void OpBuilder::kv_write(ValueId k, ValueId v, ValueId cache, const AttentionShape& shape) {
  builder_.emit(KvWriteOp{.k = k,
                          .v = v,
                          .kv_slots = scope_.step.kv_slots[place_of(cache)],
                          .cache = cache,
                          .kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim});
}

ValueId OpBuilder::attention(const std::string& name, ValueId q, ValueId cache, int layer,
                             const AttentionShape& shape) {
  const ValueId out = activation(name, builder_.rows(q), shape.q_heads * shape.head_dim);
  builder_.emit(
      AttentionOp{.q = q,
                  .cache = cache,
                  .query_start = scope_.step.query_start,
                  .seq_lens = scope_.step.seq_lens,
                  .row_slot = scope_.step.row_slot,
                  .block_table = scope_.step.block_table[place_of(cache)],
                  .out = out,
                  .q_heads = shape.q_heads,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .sliding_window = builder_.program().group_of(builder_.value(cache)).window,
                  .scale = shape.scale,
                  .layer = layer});
  return out;
}

ValueId OpBuilder::linear_recurrence(const std::string& name, ValueId gate, ValueId in,
                                     ValueId state) {
  const ValueId out = activation(name, builder_.rows(in), builder_.cols(in));
  builder_.emit(LinearRecurrenceOp{.gate = gate,
                                   .in = in,
                                   .positions = scope_.step.positions,
                                   .query_start = scope_.step.query_start,
                                   .row_slot = scope_.step.row_slot,
                                   .state = state,
                                   .out = out,
                                   .versions = 1 + builder_.limits().num_drafts});
  return out;
}

ValueId OpBuilder::select_rows(const std::string& name, ValueId in) {
  return select_rows(name, in, scope_.step.logit_index);
}

ValueId OpBuilder::select_rows(const std::string& name, ValueId in, ValueId index) {
  const ValueId out = activation(name, builder_.rows(index), builder_.cols(in));
  builder_.emit(SelectRowsOp{.in = in, .index = index, .out = out});
  return out;
}

ValueId OpBuilder::lm_head(ValueId in, ValueId table, ValueKind kind, Parallel parallel) {
  const ValueId out = builder_.define({.name = scope_.prefix + "logits",
                                       .kind = kind,
                                       .dtype = DType::kFloat32,
                                       .rows = builder_.rows(in),
                                       .cols = builder_.rows(table).scale});
  builder_.emit(
      LinearOp{.in = in,
               .weight = table,
               .out = out,
               .parallel = parallel,
               .unit = parallel == Parallel::kVocab ? SplitUnit::kVocab : SplitUnit::kNone});
  return out;
}

ValueId OpBuilder::map_logits(ValueId logits, const std::string& tensor) {
  const ValueId offset = builder_.token_map(tensor, builder_.cols(logits));
  const ValueId out = builder_.define({.name = scope_.prefix + "logits.mapped",
                                       .dtype = DType::kFloat32,
                                       .rows = builder_.rows(logits),
                                       .cols = builder_.program().vocab_size});
  builder_.emit(MapLogitsOp{.in = logits, .offset = offset, .out = out});
  return out;
}

// Right behind what makes it: later ops may write in its place.
void OpBuilder::keep_hidden(int64_t layer, ValueId hidden) {
  const auto& kept = builder_.limits().hidden_states;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != layer) continue;
    const Value& from = builder_.value(hidden);
    const ValueId out = builder_.define({.name = BuildLimits::hidden_name(i),
                                         .kind = ValueKind::kOutput,
                                         .dtype = from.dtype,
                                         .rows = from.rows,
                                         .cols = from.cols,
                                         .storage = Storage::kDevice,
                                         .zeroed = true});
    builder_.emit(ConcatOp{.parts = {hidden, kNoValue, kNoValue}, .out = out});
  }
}

}  // namespace refrain::worker
