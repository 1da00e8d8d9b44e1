#pragma once
// What rewriting passes share: who defines and who uses a value, and dropping what nobody uses.
// Built for one Program and out of date once it changes.

#include <map>
#include <vector>

#include "worker/program/program.h"

namespace refrain::worker {

class Uses {
 public:
  explicit Uses(const Program& program);
  // Index of the op that defines the value; -1: none (weights, inputs, state).
  int def(ValueId id) const { return defs_[static_cast<size_t>(id)]; }
  // Indices of the ops that read it, ascending.
  const std::vector<int>& users(ValueId id) const { return users_[static_cast<size_t>(id)]; }
  bool used_once(ValueId id) const { return users(id).size() == 1; }

 private:
  std::vector<int> defs_;
  std::vector<std::vector<int>> users_;
};

// The op that defines `id` if it is an O, else null.
template <class O>
const O* def_as(const Program& program, const Uses& uses, ValueId id) {
  const int op = id == kNoValue ? -1 : uses.def(id);
  return op < 0 ? nullptr : std::get_if<O>(&program.ops[static_cast<size_t>(op)]);
}

inline bool is_bf16(const Program& program, ValueId id) {
  return program.value(id).dtype == DType::kBFloat16;
}
// Of 64 columns, more than two: what the linear kernel for up to kernels::FewRows::max_plain_rows
// takes.
inline bool has_whole_atoms(const Program& program, ValueId weight) {
  const int64_t cols = program.value(weight).cols;
  return cols % 64 == 0 && cols > 128;
}

// Of a linear's K, where ranks share it: then all ranks say the same of its shape.
inline bool has_equal_shares(const Program& program, ValueId weight, Parallel parallel) {
  const int64_t shares = parallel == Parallel::kRow ? program.tensor_parallel_size : 1;
  return program.value(weight).cols * shares == program.value(weight).parts.front().tensor_cols;
}

// Adds a value and returns its id.
ValueId add_value(Program& program, Value value);

// Puts each op in front of the one at its place now, or, at the number of ops, behind all; those of
// one place in the map's order.
void insert_ops(Program& program, const std::multimap<size_t, Op>& before);

// Removes the marked ops; values keep their ids.
void drop_ops(Program& program, const std::vector<bool>& remove);

// Removes the marked ops, then the values no op names, and renumbers the rest in order.
void compact(Program& program, const std::vector<bool>& remove_op);

// Moves each select_rows up over the row-wise ops that only it needs, so that the end of the last
// layer works on R rows instead of T.
Program select_rows_early(Program program);

}  // namespace refrain::worker
