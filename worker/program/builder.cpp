#include "worker/program/builder.h"

#include "runtime/base/check.h"

namespace refrain::worker {

ProgramBuilder::ProgramBuilder(std::string name, DType activation_dtype, DType weight_dtype)
    : activation_dtype_(activation_dtype), weight_dtype_(weight_dtype) {
  program_.name = std::move(name);
}

ValueId ProgramBuilder::define(Value value) {
  program_.values.push_back(std::move(value));
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId ProgramBuilder::activation(const std::string& name, Dim rows, int64_t cols) {
  return define({.name = name, .dtype = activation_dtype_, .rows = rows, .cols = cols});
}

ValueId ProgramBuilder::input(const std::string& name, DType dtype, Dim rows) {
  return define({.name = name, .kind = ValueKind::kInput, .dtype = dtype, .rows = rows, .cols = 1});
}

ValueId ProgramBuilder::weight(const std::string& tensor, int64_t rows, int64_t cols, WeightUse use,
                               SplitUnit unit) {
  if (const auto found = weights_.find(tensor); found != weights_.end()) {
    const Value& value = program_.value(found->second);
    REFRAIN_CHECK(value.rows == Dim::constant(rows) && value.cols == cols && value.use == use,
                  "weight {} is asked for in two shapes", tensor);
    return found->second;
  }
  Value value{.name = tensor,
              .kind = ValueKind::kWeight,
              .dtype = use == WeightUse::kMatrix ? weight_dtype_ : DType::kFloat32,
              .rows = Dim::constant(rows),
              .cols = cols,
              .use = use};
  value.parts.push_back({.tensor = tensor,
                         .tensor_rows = rows,
                         .tensor_cols = cols,
                         .row_end = rows,
                         .col_end = cols,
                         .unit = unit});
  return weights_[tensor] = define(std::move(value));
}

ValueId ProgramBuilder::matrix(const std::string& tensor, int64_t rows, int64_t cols,
                               SplitUnit unit) {
  return weight(tensor, rows, cols, WeightUse::kMatrix, unit);
}

ValueId ProgramBuilder::vector(const std::string& tensor, int64_t size, SplitUnit unit) {
  return weight(tensor, size, 1, WeightUse::kVector, unit);
}

ValueId ProgramBuilder::rope_table(int64_t positions, int64_t rotary_dim) {
  return define({.name = "rope_table",
                 .kind = ValueKind::kWeight,
                 .dtype = DType::kFloat32,
                 .rows = Dim::constant(positions),
                 .cols = rotary_dim,
                 .use = WeightUse::kRopeTable});
}

ValueId ProgramBuilder::kv_cache(int layer, const AttentionShape& shape, DType dtype) {
  if (program_.kv_groups.empty())
    program_.kv_groups.push_back({.kv_heads = shape.kv_heads, .head_dim = shape.head_dim});
  KvGroup& group = program_.kv_groups.front();
  REFRAIN_CHECK(group.kv_heads == shape.kv_heads && group.head_dim == shape.head_dim,
                "layer {} needs a KV group of another shape", layer);
  ++group.num_layers;
  return define({.name = "kv_cache." + std::to_string(layer),
                 .kind = ValueKind::kState,
                 .dtype = dtype,
                 .rows = Dim::constant(0),
                 .cols = 2 * shape.kv_heads * shape.head_dim,
                 .layer = layer});
}

void ProgramBuilder::prepare_inputs() { program_.ops.emplace_back(PrepareInputsOp{}); }

ValueId ProgramBuilder::embed(const std::string& name, ValueId ids, ValueId table) {
  const ValueId out = activation(name, rows_of(ids), program_.value(table).cols);
  program_.ops.emplace_back(EmbedOp{.ids = ids,
                                    .table = table,
                                    .out = out,
                                    .vocab_begin = 0,
                                    .vocab_end = program_.value(table).rows.scale});
  return out;
}

ValueId ProgramBuilder::rms_norm(const std::string& name, ValueId in, ValueId weight, double eps,
                                 int64_t group) {
  const ValueId out = activation(name, rows_of(in), program_.value(in).cols);
  program_.ops.emplace_back(RmsNormOp{
      .in = in, .weight = weight, .out = out, .eps = static_cast<float>(eps), .group = group});
  return out;
}

ValueId ProgramBuilder::add(const std::string& name, ValueId residual, ValueId delta) {
  const ValueId out = activation(name, rows_of(residual), program_.value(residual).cols);
  program_.ops.emplace_back(AddOp{.a = residual, .b = delta, .out = out});
  return out;
}

ValueId ProgramBuilder::linear(const std::string& name, ValueId in, ValueId weight, ValueId bias,
                               Parallel parallel, SplitUnit unit) {
  const ValueId out = activation(name, rows_of(in), program_.value(weight).rows.scale);
  program_.ops.emplace_back(LinearOp{
      .in = in, .weight = weight, .bias = bias, .out = out, .parallel = parallel, .unit = unit});
  return out;
}

ValueId ProgramBuilder::lm_head(ValueId in, ValueId table) {
  const ValueId out = define({.name = "logits",
                              .kind = ValueKind::kOutput,
                              .dtype = DType::kFloat32,
                              .rows = rows_of(in),
                              .cols = program_.value(table).rows.scale});
  program_.ops.emplace_back(LinearOp{.in = in,
                                     .weight = table,
                                     .out = out,
                                     .parallel = Parallel::kVocab,
                                     .unit = SplitUnit::kVocab});
  return out;
}

ValueId ProgramBuilder::silu_gate(const std::string& name, ValueId gate, ValueId up) {
  const ValueId out = activation(name, rows_of(gate), program_.value(gate).cols);
  program_.ops.emplace_back(SiluGateOp{.gate = gate, .up = up, .out = out});
  return out;
}

ValueId ProgramBuilder::rope(const std::string& name, ValueId in, ValueId positions, ValueId table,
                             int64_t heads, const AttentionShape& shape) {
  const ValueId out = activation(name, rows_of(in), heads * shape.head_dim);
  program_.ops.emplace_back(RopeOp{.in = in,
                                   .positions = positions,
                                   .table = table,
                                   .out = out,
                                   .heads = heads,
                                   .head_dim = shape.head_dim,
                                   .rotary_dim = shape.rotary_dim});
  return out;
}

void ProgramBuilder::kv_write(ValueId k, ValueId v, ValueId kv_slots, ValueId cache,
                              const AttentionShape& shape) {
  program_.ops.emplace_back(KvWriteOp{.k = k,
                                      .v = v,
                                      .kv_slots = kv_slots,
                                      .cache = cache,
                                      .kv_heads = shape.kv_heads,
                                      .head_dim = shape.head_dim});
}

ValueId ProgramBuilder::attention(const std::string& name, ValueId q, ValueId cache, int layer,
                                  const AttentionShape& shape) {
  const ValueId out = activation(name, rows_of(q), shape.q_heads * shape.head_dim);
  program_.ops.emplace_back(AttentionOp{.q = q,
                                        .cache = cache,
                                        .out = out,
                                        .q_heads = shape.q_heads,
                                        .kv_heads = shape.kv_heads,
                                        .head_dim = shape.head_dim,
                                        .sliding_window = shape.sliding_window,
                                        .scale = shape.scale,
                                        .layer = layer});
  return out;
}

ValueId ProgramBuilder::select_rows(const std::string& name, ValueId in, ValueId index) {
  const ValueId out = activation(name, rows_of(index), program_.value(in).cols);
  program_.ops.emplace_back(SelectRowsOp{.in = in, .index = index, .out = out});
  return out;
}

void ProgramBuilder::sample(ValueId logits) {
  program_.ops.emplace_back(
      SampleOp{.logits = logits, .shards = 1, .vocab_size = program_.value(logits).cols});
}

Program ProgramBuilder::finish(int64_t vocab_size, int64_t max_positions) {
  program_.vocab_size = vocab_size;
  program_.max_positions = max_positions;
  return std::move(program_);
}

}  // namespace refrain::worker
