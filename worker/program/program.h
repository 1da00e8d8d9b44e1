#pragma once
// A model as data: ordered ops on named values, their rows counted by extents (T tokens, R
// requests). Passes (passes/) rewrite it; printer.h prints it; the interpreter (worker/graph) runs
// it through a kernel table. A Program is a value: copying it copies the model's meaning, not its
// weights.

#include <cstdint>
#include <string>
#include <vector>

#include "worker/program/ops.h"
#include "worker/program/state_group.h"

namespace refrain::worker {

struct Program {
  std::string name;
  std::vector<Extent> extents;  // by ExtentId
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<StateGroup> states;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int64_t logits_per_request = 1;  // at most: 1, and one for each draft
  int tensor_parallel_size = 1;
  int rank = 0;
  int replicas = 1;  // that its ops exchange something with, itself included (CG-17)

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  const StateGroup& group_of(const Value& state) const {
    return states[static_cast<size_t>(state.group)];
  }
  ExtentSizes max_sizes() const;
};

// Which of the paged state groups it is, in their order: the place of its block table and KV slots
// in prepare_inputs.
int paged_place(const Program& program, int group);

// The first op of a step's Program and the last, but for the one that takes drafts; a Program that
// has others there is a FatalError.
const PrepareInputsOp& prepare_op(const Program& program);
const SampleOp& sample_op(const Program& program);
const PoolOp* pool_op(const Program& program);            // null: it does not pool, but samples
const AcceptDraftsOp* accept_op(const Program& program);  // null: no speculation

}  // namespace refrain::worker
