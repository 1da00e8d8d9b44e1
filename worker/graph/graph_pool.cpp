#include "worker/graph/graph_pool.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain::worker {

void GraphPool::reserve(size_t bytes) {
  REFRAIN_CHECK(arena_ == nullptr, "the arena of {} bytes is in use and cannot grow to {}",
                reserved_, bytes);
  reserved_ = std::max(reserved_, bytes);
}

void GraphPool::commit() {
  REFRAIN_CHECK(arena_ == nullptr, "the arena is allocated once");
  arena_ = device_.allocate(std::max<size_t>(reserved_, 1), MemoryTag::kArena);
}

void* GraphPool::arena() const {
  REFRAIN_CHECK(arena_ != nullptr, "the arena is not allocated yet");
  return arena_->data();
}

void GraphPool::account(const Graph& graph) {
  ++counters_.num_graphs_captured;
  counters_.num_nodes += graph.num_nodes();
  graph_bytes_ += graph.bytes();
}

}  // namespace refrain::worker
