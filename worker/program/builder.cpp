#include "worker/program/builder.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace refrain::worker {

ProgramBuilder::ProgramBuilder(std::string name, DType activation_dtype, DType weight_dtype,
                               int64_t vocab_size, const BuildLimits& limits)
    : activation_dtype_(activation_dtype), weight_dtype_(weight_dtype), limits_(limits) {
  program_.name = std::move(name);
  program_.vocab_size = vocab_size;
}

ValueId ProgramBuilder::define(Value value) {
  program_.values.push_back(std::move(value));
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId ProgramBuilder::activation(const std::string& name, Dim rows, int64_t cols) {
  return define({.name = prefix_ + name, .dtype = activation_dtype_, .rows = rows, .cols = cols});
}

ValueId ProgramBuilder::input(const char* name, DType dtype, Dim rows) {
  return define({.name = name,
                 .kind = ValueKind::kInput,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = 1,
                 .storage = Storage::kDevice,
                 .zeroed = true});
}

// One row a slot, and one for the reserved slot of padded requests.
ValueId ProgramBuilder::of_slots(std::string name, DType dtype, int64_t cols, bool zeroed) {
  return define({.name = std::move(name),
                 .kind = ValueKind::kState,
                 .dtype = dtype,
                 .rows = Dim::constant(int64_t{limits_.step.max_reqs} + 1),
                 .cols = cols,
                 .storage = Storage::kDevice,
                 .zeroed = zeroed});
}

ValueId ProgramBuilder::output(const char* name, DType dtype, Dim rows, int64_t cols) {
  return define({.name = name,
                 .kind = ValueKind::kOutput,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kPinned});
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
              .storage = Storage::kDevice,
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
                 .storage = Storage::kDevice,
                 .use = WeightUse::kRopeTable});
}

int ProgramBuilder::paged_group(const std::string& name, int64_t window) {
  program_.states.push_back({.name = name, .kind = StateKind::kPaged, .window = window});
  return static_cast<int>(program_.states.size()) - 1;
}

int ProgramBuilder::slot_group(const std::string& name, AttentionCGSupport support) {
  program_.states.push_back({.name = name, .kind = StateKind::kSlot, .support = support});
  return static_cast<int>(program_.states.size()) - 1;
}

void ProgramBuilder::keep_in(int group, int layer, StateKind kind) {
  StateGroup& keeps = program_.states.at(static_cast<size_t>(group));
  REFRAIN_CHECK(keeps.kind == kind, "layer {} does not keep what group {} has", layer, keeps.name);
  keeps.layers.push_back(layer);
}

ValueId ProgramBuilder::kv_cache(int group, int layer, const AttentionShape& shape, DType dtype) {
  keep_in(group, layer, StateKind::kPaged);
  const PagedPart keys{"keys", SplitUnit::kKvHeads, shape.kv_heads, shape.head_dim, dtype};
  PagedPart values = keys;
  values.name = "values";
  const PagedLayout layout{{keys, values}};
  StateGroup& keeps = program_.states[static_cast<size_t>(group)];
  if (keeps.layers.size() == 1) keeps.paged = layout;
  REFRAIN_CHECK(keeps.paged == layout, "layer {} needs a state group of another shape", layer);
  return define({.name = "kv_cache." + std::to_string(layer),
                 .kind = ValueKind::kState,
                 .dtype = dtype,
                 .rows = Dim::constant(0),
                 .cols = layout.cols(),
                 .storage = Storage::kPaged,
                 .group = group,
                 .layer = layer});
}

ValueId ProgramBuilder::slot_state(int group, int layer, SlotLayout layout) {
  layout.versions = 1 + limits_.num_drafts;
  keep_in(group, layer, StateKind::kSlot);
  StateGroup& keeps = program_.states[static_cast<size_t>(group)];
  if (keeps.layers.size() == 1) keeps.slot = layout;
  REFRAIN_CHECK(keeps.slot == layout, "layer {} needs a state group of another shape", layer);
  const ValueId state =
      of_slots(fmt::format("slots.{}.{}", keeps.name, layer), layout.dtype, layout.cols());
  program_.values[static_cast<size_t>(state)].group = group;
  program_.values[static_cast<size_t>(state)].layer = layer;
  return state;
}

const PrepareInputsOp& ProgramBuilder::prepare_inputs() {
  const Dim one = Dim::constant(1), tokens = Dim::tokens(), requests = Dim::requests();
  PrepareInputsOp& op = step_;
  op.limits = limits_.step;
  op.token_ids = input("token_ids", DType::kInt32, tokens);
  op.positions = input("positions", DType::kInt32, tokens);
  for (const StateGroup& group : limits_.draft_groups) {
    REFRAIN_CHECK(group.kind == StateKind::kPaged, "the draft model keeps no slot states");
    program_.states.push_back({.name = "draft." + group.name, .window = group.window});
  }
  const auto each_paged = [this](auto&& define_one) {
    size_t at = 0;
    for (StateGroup& group : program_.states) {
      if (group.kind != StateKind::kPaged) continue;
      REFRAIN_CHECK(at < kernels::kMaxPagedGroups, "{} paged state groups at most",
                    kernels::kMaxPagedGroups);
      define_one(at, at == 0 ? std::string() : "." + group.name);
      ++at;
    }
  };
  each_paged([&](size_t at, const std::string& of) {
    op.kv_slots[at] = input(("kv_slots" + of).c_str(), DType::kInt64, tokens);
  });
  op.logit_index = input("logit_index", DType::kInt32, speculates() ? Dim::samples() : requests);
  op.query_start = input("query_start", DType::kInt32, {kRequests, 1, 1});
  op.seq_lens = input("seq_lens", DType::kInt32, requests);
  op.row_slot = input("row_slot", DType::kInt32, requests);
  op.row_flags = input("row_flags", DType::kUInt8, requests);
  op.live_tokens = input("live_tokens", DType::kInt32, one);
  op.live_reqs = input("live_reqs", DType::kInt32, one);
  op.live_logits = input("live_logits", DType::kInt32, one);
  const auto bytes = static_cast<int64_t>(op.limits.layout().total);
  op.block = define({.name = "step_block",
                     .kind = ValueKind::kInput,
                     .dtype = DType::kUInt8,
                     .rows = one,
                     .cols = bytes,
                     .storage = Storage::kPinned});
  op.block_copy = define({.name = "step_block.copy",
                          .dtype = DType::kUInt8,
                          .rows = one,
                          .cols = bytes,
                          .storage = Storage::kDevice});
  op.turn = define({.name = "turn",
                    .kind = ValueKind::kState,
                    .dtype = DType::kInt32,
                    .rows = one,
                    .cols = 1,
                    .storage = Storage::kDevice,
                    .zeroed = true,
                    .of_context = true});
  op.last_token = of_slots("slots.last_token", DType::kInt32, 1, true);
  each_paged([&](size_t at, const std::string& of) {
    op.block_table[at] =
        of_slots("slots.block_table" + of, DType::kInt32, limits_.max_blocks, true);
  });
  op.params = of_slots("slots.params", DType::kUInt8, sizeof(kernels::SlotParams));
  op.output_count = of_slots("slots.output_count", DType::kInt32, program_.vocab_size);
  op.in_prompt = of_slots("slots.in_prompt", DType::kUInt8, program_.vocab_size);
  program_.extents = {{"tokens", limits_.step.max_tokens, op.live_tokens},
                      {"requests", limits_.step.max_reqs, op.live_reqs}};
  if (speculates()) declare_speculation();
  program_.ops.emplace_back(op);
  return step_;
}

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

ValueId ProgramBuilder::gather_replicas(const std::string& name, ValueId in) {
  Dim rows = rows_of(in);
  rows.scale *= program_.replicas;
  const ValueId out = activation(name, rows, program_.value(in).cols);
  program_.ops.emplace_back(GatherReplicasOp{.in = in, .out = out});
  return out;
}

ValueId ProgramBuilder::reduce_replicas(const std::string& name, ValueId in) {
  Dim rows = rows_of(in);
  rows.scale /= program_.replicas;
  const ValueId out = activation(name, rows, program_.value(in).cols);
  program_.ops.emplace_back(ReduceReplicasOp{.in = in, .out = out});
  return out;
}

ValueId ProgramBuilder::lm_head(ValueId in, ValueId table, ValueKind kind, Parallel parallel) {
  const ValueId out = define({.name = prefix_ + "logits",
                              .kind = kind,
                              .dtype = DType::kFloat32,
                              .rows = rows_of(in),
                              .cols = program_.value(table).rows.scale});
  program_.ops.emplace_back(
      LinearOp{.in = in,
               .weight = table,
               .out = out,
               .parallel = parallel,
               .unit = parallel == Parallel::kVocab ? SplitUnit::kVocab : SplitUnit::kNone});
  return out;
}

ValueId ProgramBuilder::silu_gate(const std::string& name, ValueId gate, ValueId up) {
  const ValueId out = activation(name, rows_of(gate), program_.value(gate).cols);
  program_.ops.emplace_back(SiluGateOp{.gate = gate, .up = up, .out = out});
  return out;
}

ValueId ProgramBuilder::rope(const std::string& name, ValueId in, ValueId table, int64_t heads,
                             const AttentionShape& shape) {
  const ValueId out = activation(name, rows_of(in), heads * shape.head_dim);
  program_.ops.emplace_back(RopeOp{.in = in,
                                   .positions = step_.positions,
                                   .table = table,
                                   .out = out,
                                   .heads = heads,
                                   .head_dim = shape.head_dim,
                                   .rotary_dim = shape.rotary_dim});
  return out;
}

void ProgramBuilder::kv_write(ValueId k, ValueId v, ValueId cache, const AttentionShape& shape) {
  program_.ops.emplace_back(KvWriteOp{.k = k,
                                      .v = v,
                                      .kv_slots = step_.kv_slots[place_of(cache)],
                                      .cache = cache,
                                      .kv_heads = shape.kv_heads,
                                      .head_dim = shape.head_dim});
}

ValueId ProgramBuilder::attention(const std::string& name, ValueId q, ValueId cache, int layer,
                                  const AttentionShape& shape) {
  const ValueId out = activation(name, rows_of(q), shape.q_heads * shape.head_dim);
  program_.ops.emplace_back(
      AttentionOp{.q = q,
                  .cache = cache,
                  .query_start = step_.query_start,
                  .seq_lens = step_.seq_lens,
                  .row_slot = step_.row_slot,
                  .block_table = step_.block_table[place_of(cache)],
                  .out = out,
                  .q_heads = shape.q_heads,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .sliding_window = program_.group_of(program_.value(cache)).window,
                  .scale = shape.scale,
                  .layer = layer});
  return out;
}

ValueId ProgramBuilder::linear_recurrence(const std::string& name, ValueId gate, ValueId in,
                                          ValueId state) {
  const ValueId out = activation(name, rows_of(in), program_.value(in).cols);
  program_.ops.emplace_back(LinearRecurrenceOp{.gate = gate,
                                               .in = in,
                                               .positions = step_.positions,
                                               .query_start = step_.query_start,
                                               .row_slot = step_.row_slot,
                                               .state = state,
                                               .out = out,
                                               .versions = 1 + limits_.num_drafts});
  return out;
}

ValueId ProgramBuilder::select_rows(const std::string& name, ValueId in) {
  const ValueId index = step_.logit_index;
  const ValueId out = activation(name, rows_of(index), program_.value(in).cols);
  program_.ops.emplace_back(SelectRowsOp{.in = in, .index = index, .out = out});
  return out;
}

Program ProgramBuilder::finish(int64_t max_positions) {
  program_.max_positions = max_positions;
  return std::move(program_);
}

}  // namespace refrain::worker
