#pragma once
// A model as data: ordered ops on named values, their rows counted by extents (T tokens, R
// requests). Passes (passes/) rewrite it; printer.h prints it; the interpreter (worker/graph) runs
// it through a kernel table. A Program is a value: copying it copies the model's meaning, not its
// weights.

#include <cstdint>
#include <string>
#include <vector>

#include "worker/program/ops.h"

namespace refrain::worker {

// Facts about the model that the runner and the KV cache need.
struct KvGroup {
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  int64_t num_layers = 0;
};

struct Program {
  std::string name;
  std::vector<Extent> extents;  // by ExtentId
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<KvGroup> kv_groups;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int tensor_parallel_size = 1;
  int rank = 0;

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  ExtentSizes max_sizes() const;
};

// The first and last op of a step's Program; a Program that has others there is a FatalError.
const PrepareInputsOp& prepare_op(const Program& program);
const SampleOp& sample_op(const Program& program);

}  // namespace refrain::worker
