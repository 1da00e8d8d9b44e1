#include "worker/program/passes/rewrite.h"

namespace refrain::worker {

Uses::Uses(const Program& program)
    : defs_(program.values.size(), -1), users_(program.values.size()) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const int op = static_cast<int>(i);
    for (const ValueId id : reads(program.ops[i])) {
      auto& users = users_[static_cast<size_t>(id)];
      if (users.empty() || users.back() != op) users.push_back(op);
    }
    for (const ValueId id : writes(program.ops[i]))
      if (program.value(id).kind != ValueKind::kState) defs_[static_cast<size_t>(id)] = op;
  }
}

ValueId add_value(Program& program, Value value) {
  program.values.push_back(std::move(value));
  return static_cast<ValueId>(program.values.size() - 1);
}

void insert_ops(Program& program, const std::multimap<size_t, Op>& before) {
  std::vector<Op> ops;
  for (size_t at = 0; at <= program.ops.size(); ++at) {
    const auto [first, last] = before.equal_range(at);
    for (auto op = first; op != last; ++op) ops.push_back(op->second);
    if (at < program.ops.size()) ops.push_back(program.ops[at]);
  }
  program.ops = std::move(ops);
}

void drop_ops(Program& program, const std::vector<bool>& remove) {
  std::vector<Op> ops;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (!remove[i]) ops.push_back(program.ops[i]);
  }
  program.ops = std::move(ops);
}

void compact(Program& program, const std::vector<bool>& remove_op) {
  std::vector<Op> ops;
  std::vector<bool> used(program.values.size(), false);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (i < remove_op.size() && remove_op[i]) continue;
    ops.push_back(program.ops[i]);
    visit_operands(ops.back(), [&](ValueId id, const Operand&) {
      if (id != kNoValue) used[static_cast<size_t>(id)] = true;
    });
  }
  std::vector<ValueId> renumbered(program.values.size(), kNoValue);
  std::vector<Value> values;
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (!used[i]) continue;
    renumbered[i] = static_cast<ValueId>(values.size());
    values.push_back(std::move(program.values[i]));
  }
  for (Op& op : ops)
    visit_operands(op, [&](ValueId& id, const Operand&) {
      if (id != kNoValue) id = renumbered[static_cast<size_t>(id)];
    });
  for (Extent& extent : program.extents) {
    if (extent.live != kNoValue) extent.live = renumbered[static_cast<size_t>(extent.live)];
  }
  program.values = std::move(values);
  program.ops = std::move(ops);
}

}  // namespace refrain::worker
