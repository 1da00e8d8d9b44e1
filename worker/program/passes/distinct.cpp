#include <algorithm>
#include <utility>

#include "worker/program/passes/passes.h"

// Layers repeat: which pieces of a Program launch something that no earlier one does.

namespace refrain::worker {
namespace {

struct ValueShape {
  ValueKind kind;
  DType dtype;
  Dim rows;
  int64_t cols;
  // Of the checkpoint: alike on every rank, so that all ranks find the same pieces.
  std::vector<std::pair<int64_t, int64_t>> tensors;
  bool operator==(const ValueShape&) const = default;
};

// An op without its layer: what stands in each field instead of which value.
struct LayerlessOp {
  Op op;
  std::vector<ValueShape> values;
  bool operator==(const LayerlessOp&) const = default;
};

LayerlessOp without_layer(const Program& program, const Op& op) {
  LayerlessOp shape{op, {}};
  visit_operands(shape.op, [&](ValueId& field, const Operand&) {
    if (field == kNoValue) return;
    const Value& value = program.value(std::exchange(field, 0));
    shape.values.push_back({value.kind, value.dtype, value.rows, value.cols, {}});
    for (const WeightPart& part : value.parts) {
      shape.values.back().tensors.emplace_back(part.tensor_rows, part.tensor_cols);
    }
  });
  for (const Attribute& attribute : definition(op).attributes) {
    if (attribute.forget != nullptr) attribute.forget(op_data(shape.op));
  }
  return shape;
}

}  // namespace

std::vector<OpRange> distinct_pieces(const Program& program) {
  std::vector<std::vector<LayerlessOp>> seen;
  std::vector<OpRange> distinct;
  const auto pieces = split_program(program, {"attention", "rope_attention"});
  for (const PieceRange& piece : pieces.value()) {
    std::vector<LayerlessOp> ops;
    for (int i = piece.ops.begin; i < piece.ops.end; ++i) {
      ops.push_back(without_layer(program, program.ops[static_cast<size_t>(i)]));
    }
    if (std::ranges::find(seen, ops) != seen.end()) continue;
    seen.push_back(std::move(ops));
    distinct.push_back(piece.ops);
  }
  return distinct;
}

}  // namespace refrain::worker
