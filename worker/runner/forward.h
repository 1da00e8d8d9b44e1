#pragma once
// A batch through one Program of an execution context, as dispatch said (CG-34). Device thread.

#include "ipc/protocol/messages.h"
#include "worker/graph/graph_pool.h"
#include "worker/runner/hosted_program.h"

namespace refrain::worker {

class Forward {
 public:
  // debug_cudagraph: addresses are compared with those of the capture (CG-29).
  Forward(GraphCounters& counters, bool debug_cudagraph)
      : counters_(counters), debug_cudagraph_(debug_cudagraph) {}

  // Runs the graphs and pieces of the key, or every op without one. Whether a graph ran. `key`: the
  // program's executed_key of what dispatch said.
  bool run(const HostedProgram& program, const Dispatch& dispatch, const BatchDescriptor& key,
           const BatchShape& batch);
  // From now on the pieces of a key run without their graphs, splitting ops as the replay does
  // (CG-28).
  void run_eager_at_key(bool on) { eager_at_key_ = on; }

 private:
  GraphCounters& counters_;
  const bool debug_cudagraph_;
  bool eager_at_key_ = false;
};

}  // namespace refrain::worker
