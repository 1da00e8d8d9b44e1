#pragma once
// One lowering of a hosted Program, ready to run: its ops, pieces, places in the arena, context.
// All lowerings of a Program share weights, cache, buffers and arena, and take turns on the device
// thread; which one a key gets depends on the key alone. Not movable once bound: the context points
// at the program.

#include <vector>

#include "worker/dispatch/batch_shape.h"
#include "worker/graph/op_context.h"
#include "worker/program/passes/passes.h"

namespace refrain::worker {

struct Lowering {
  Program program;
  std::vector<PieceRange> pieces;  // empty: nothing to split at
  std::vector<OpRange> warm_up;    // distinct_pieces(program): what a warm-up run launches
  MemoryPlan plan;
  OpContext context;
  // Requests that warm-ups of it had, ascending: they brought what a batch of so many needs.
  std::vector<int32_t> request_sizes;
  bool decode = false;  // for keys of one token a request alone
  bool lora = false;    // for batches with adapters alone (CG-15)

  OpRange all_ops() const { return {0, static_cast<int>(program.ops.size())}; }
};

}  // namespace refrain::worker
