#pragma once
// What all captures of an execution context share, whatever Program or key type they belong to: one
// arena (CG-24), the byte account and the counters (CG-26). Outlives the executables; device
// thread.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker/device/device.h"

namespace refrain::worker {

struct GraphCounters {
  int64_t num_graphs_captured = 0;  // graphs in use: captures that were dropped are not counted
  int64_t num_pieces = 0;           // of all captured executables, eager ones included
  int64_t num_nodes = 0;
  int64_t num_captures_dropped = 0;  // keys given up for want of memory
  int64_t num_warmup_runs = 0;
  int64_t num_replays = 0;     // graph launches
  int64_t num_eager_runs = 0;  // eager pieces run
};

class GraphPool {
 public:
  explicit GraphPool(Device& device) : device_(device) {}

  // Each hosted Program asks for its plan's bytes before anything runs; they take turns in one
  // arena of the largest. Growing it after commit() is refused.
  void reserve(size_t bytes);
  void commit();  // allocates the arena
  void* arena() const;
  size_t arena_bytes() const { return reserved_; }

  // Entered into the account when its whole executable is in the table.
  void account(const Graph& graph);
  size_t graph_bytes() const { return graph_bytes_; }
  GraphCounters& counters() { return counters_; }
  const GraphCounters& counters() const { return counters_; }

 private:
  Device& device_;
  size_t reserved_ = 0;
  size_t graph_bytes_ = 0;
  std::unique_ptr<Buffer> arena_;
  GraphCounters counters_;
};

}  // namespace refrain::worker
