#include <algorithm>
#include <optional>
#include <utility>

#include "worker/program/passes/rewrite.h"

namespace refrain::worker {
namespace {

// The select_rows ops (by index) that are the only users of what op `index` defines, all by one
// index value; empty when there are other users, or none.
std::vector<int> only_selected_by(const Program& program, const Uses& uses, int index) {
  std::vector<int> selects;
  std::optional<ValueId> by;
  for (const ValueId out : writes(program.ops[static_cast<size_t>(index)])) {
    if (program.value(out).kind == ValueKind::kOutput) return {};
    for (const int user : uses.users(out)) {
      const auto* select = std::get_if<SelectRowsOp>(&program.ops[static_cast<size_t>(user)]);
      if (select == nullptr || (by && *by != select->index)) return {};
      by = select->index;
      selects.push_back(user);
    }
  }
  return selects;
}

// Rewrites `selects` and the op they follow into: selects of the op's activations, then the op.
void move_over(Program& program, int index, const std::vector<int>& selects) {
  const auto first = std::get<SelectRowsOp>(program.ops[static_cast<size_t>(selects.front())]);
  const Dim rows = program.value(first.out).rows;
  Op op = program.ops[static_cast<size_t>(index)];
  std::vector<Op> before;
  visit_operands(op, [&](ValueId& id, const Operand& operand) {
    if (id == kNoValue) return;
    if (operand.access == Access::kRead) {
      if (program.value(id).kind != ValueKind::kActivation) return;
      Value selected = program.value(id);
      selected.name += ".rows";
      selected.rows = rows;
      const ValueId from = std::exchange(id, add_value(program, std::move(selected)));
      before.emplace_back(SelectRowsOp{.in = from, .index = first.index, .out = id});
      return;
    }
    for (const int select : selects) {
      const auto& taken = std::get<SelectRowsOp>(program.ops[static_cast<size_t>(select)]);
      if (taken.in == id) {
        id = taken.out;
        return;
      }
    }
    program.values[static_cast<size_t>(id)].rows = rows;  // an output nobody reads
  });
  std::vector<Op> ops;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const int at = static_cast<int>(i);
    if (at == index) {
      ops.insert(ops.end(), before.begin(), before.end());
      ops.push_back(op);
    } else if (std::find(selects.begin(), selects.end(), at) == selects.end()) {
      ops.push_back(program.ops[i]);
    }
  }
  program.ops = std::move(ops);
}

bool move_one(Program& program) {
  const Uses uses(program);
  for (int i = static_cast<int>(program.ops.size()) - 1; i >= 0; --i) {
    if (!definition(program.ops[static_cast<size_t>(i)]).row_wise) continue;
    const std::vector<int> selects = only_selected_by(program, uses, i);
    if (selects.empty()) continue;
    move_over(program, i, selects);
    return true;
  }
  return false;
}

}  // namespace

Program select_rows_early(Program program) {
  while (move_one(program)) {
  }
  compact(program, {});
  return program;
}

}  // namespace refrain::worker
