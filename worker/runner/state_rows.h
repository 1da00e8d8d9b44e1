#pragma once
// What the rows of a step have in the worker's memory, copied out of it and back: keys and values
// of their tokens, layer by layer, and the states of their slots. Owned by the audit, on the device
// thread.

#include <cstdint>
#include <vector>

#include "worker/graph/lowering.h"
#include "worker/kv/kv_cache.h"
#include "worker/runner/slot_states.h"

namespace refrain::worker {

class StateRows {
 public:
  enum class Move { kFromCache, kIntoCache };
  using State = SlotStates::State;

  // Both outlive it.
  StateRows(const KvCache& cache, const SlotStates& states, int32_t block_size)
      : cache_(cache), states_(states), block_size_(block_size) {}

  const std::vector<PagedLayer>& layers() const { return cache_.layers(); }
  template <class Visit>
  void each_state(const Visit& visit) const {
    for (const SlotStates::Group& group : states_.groups()) {
      for (const State& state : group.states) visit(state);
    }
  }
  int32_t block_size() const { return block_size_; }

  // What a layer's blocks hold of these tokens.
  static size_t row_bytes(const PagedLayer& layer, int64_t tokens) {
    return static_cast<size_t>(layer.block_bytes(tokens));
  }
  size_t largest_layer(int64_t tokens) const;  // bytes
  // A layer's keys and values of the step's tokens: part after part, each [tokens] of its units.
  void move(const Lowering& lowering, const PagedLayer& layer, Buffer& rows, int32_t tokens,
            Move move) const;
  // The states of the rows' slots, state after state, to `rows` or back from there.
  void move_states(const std::vector<SlotId>& slots, Buffer& rows, Move move, Stream& stream) const;

 private:
  const KvCache& cache_;
  const SlotStates& states_;
  const int32_t block_size_;
};

// [T] of the step and a paged state group, as prepare_inputs made them.
const int64_t* kv_slots(const Lowering& lowering, int group);

}  // namespace refrain::worker
