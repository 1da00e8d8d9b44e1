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

int ProgramBuilder::paged_group(const std::string& name, int64_t window) {
  program_.states.push_back({.name = name, .kind = StateKind::kPaged, .window = window});
  return static_cast<int>(program_.states.size()) - 1;
}

int ProgramBuilder::slot_group(const std::string& name, AttentionCGSupport support) {
  program_.states.push_back({.name = name, .kind = StateKind::kSlot, .support = support});
  return static_cast<int>(program_.states.size()) - 1;
}

StateGroup& ProgramBuilder::keep_in(int group, int layer, StateKind kind) {
  StateGroup& keeps = program_.states.at(static_cast<size_t>(group));
  REFRAIN_CHECK(keeps.kind == kind, "layer {} does not keep what group {} has", layer, keeps.name);
  keeps.layers.push_back(layer);
  return keeps;
}

ValueId ProgramBuilder::kv_cache(int group, int layer, const AttentionShape& shape, DType dtype) {
  const PagedPart keys{"keys", SplitUnit::kKvHeads, shape.kv_heads, shape.head_dim, dtype};
  PagedPart values = keys;
  values.name = "values";
  const PagedLayout layout{{keys, values}};
  StateGroup& keeps = keep_in(group, layer, StateKind::kPaged);
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
  StateGroup& keeps = keep_in(group, layer, StateKind::kSlot);
  if (keeps.layers.size() == 1) keeps.slot = layout;
  REFRAIN_CHECK(keeps.slot == layout, "layer {} needs a state group of another shape", layer);
  const ValueId state =
      of_slots(fmt::format("slots.{}.{}", keeps.name, layer), layout.dtype, layout.cols());
  at(state).group = group;
  at(state).layer = layer;
  return state;
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

ValueId ProgramBuilder::shared_matrix(const std::string& tensor, int64_t rows, int64_t cols,
                                      SplitUnit unit, DType dtype) {
  const ValueId id = matrix(tensor, rows, cols, unit);
  at(id).dtype = dtype;
  at(id).passed = true;
  return id;
}

ValueId ProgramBuilder::token_map(const std::string& tensor, int64_t size) {
  const ValueId id = vector(tensor, size);
  at(id).parts.front().targets = program_.vocab_size;
  return id;
}

ValueId ProgramBuilder::define(Value value) {
  program_.values.push_back(std::move(value));
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId ProgramBuilder::activation(std::string name, Dim rows, int64_t cols) {
  return define({.name = std::move(name), .dtype = activation_dtype_, .rows = rows, .cols = cols});
}

ValueId ProgramBuilder::input(std::string name, DType dtype, Dim rows) {
  return define({.name = std::move(name),
                 .kind = ValueKind::kInput,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = 1,
                 .storage = Storage::kDevice,
                 .zeroed = true});
}

ValueId ProgramBuilder::pinned_input(std::string name, Dim rows, int64_t cols) {
  return define({.name = std::move(name),
                 .kind = ValueKind::kInput,
                 .dtype = DType::kInt32,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kPinned});
}

ValueId ProgramBuilder::output(std::string name, DType dtype, Dim rows, int64_t cols) {
  return define({.name = std::move(name),
                 .kind = ValueKind::kOutput,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kPinned});
}

ValueId ProgramBuilder::of_slots(std::string name, DType dtype, int64_t cols, bool zeroed) {
  return define({.name = std::move(name),
                 .kind = ValueKind::kState,
                 .dtype = dtype,
                 .rows = slots(),
                 .cols = cols,
                 .storage = Storage::kDevice,
                 .zeroed = zeroed});
}

ValueId ProgramBuilder::passed(std::string name, ValueKind kind, DType dtype, Dim rows,
                               int64_t cols) {
  return define({.name = std::move(name),
                 .kind = kind,
                 .dtype = dtype,
                 .rows = rows,
                 .cols = cols,
                 .storage = Storage::kDevice,
                 .passed = true});
}

void ProgramBuilder::set_extents(std::vector<Extent> extents, int64_t logits_per_request) {
  program_.extents = std::move(extents);
  program_.logits_per_request = logits_per_request;
}

Program ProgramBuilder::finish(int64_t max_positions) {
  program_.max_positions = max_positions;
  return std::move(program_);
}

}  // namespace refrain::worker
