#pragma once
// The greatest logits of rows, found where their logits are: by the linear, or in each rank's part
// of the vocabulary (shard.cpp).

#include "kernels/core/kernel_table.h"
#include "worker/program/program.h"

namespace refrain::worker {

// What is found of the rows that `logits` has, which are those of `like`: the best of `parts` parts
// of each row, in each of `shards`.
ValueId add_best(Program& program, ValueId logits, ValueId like, const char* suffix, int64_t shards,
                 int32_t parts);
// Counted by the first op that makes a step's inputs.
ValueId live_logits_of(const Program& program);

// linear -> sample, of ranks linear -> best_tokens -> all_gather -> sample: the linear finds the
// best of each row, so that the logits are written only where a row asks for more. The same Program
// where the device has no such linear, or it does not take the shape.
Program find_best(Program program, const kernels::FewRows& device);

}  // namespace refrain::worker
