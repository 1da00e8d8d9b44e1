#pragma once
// What sequences hold while they run: a slot, blocks of every state group and the place of their
// LoRA adapter. A sequence is given all of them or none. Owned by the Scheduler, on the engine's
// executor.

#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/adapter_places.h"
#include "runtime/sched/block_pools.h"
#include "runtime/sched/scheduler_options.h"

namespace refrain {

class SequenceResources {
 public:
  explicit SequenceResources(const SchedulerOptions& options);  // which outlive it
  SequenceResources(const SequenceResources&) = delete;
  SequenceResources& operator=(const SequenceResources&) = delete;

  BlockPools& pools() { return pools_; }
  const BlockPools& pools() const { return pools_; }
  AdapterPlaces& adapters() { return adapters_; }
  const AdapterPlaces& adapters() const { return adapters_; }
  bool has_slot() const { return !free_slots_.empty(); }
  bool has_one_slot() const { return free_slots_.size() == 1; }
  // A slot and the place of its adapter are free for it.
  bool has_place(const Sequence& sequence) const {
    const AdapterId adapter = sequence.params.adapter;
    return has_slot() && (adapter == 0 || adapters_.has_room(adapter));
  }

  // What is cached of a waiting sequence, as far as one step can tell the device of it.
  void find_prefix(Sequence& sequence) const;
  // Slot, blocks (as BlockPools::enter) and place. False, and nothing taken: the blocks are not
  // there.
  bool take(Sequence& sequence, int32_t computed, int32_t length, int32_t first_end,
            bool others_run);
  // Slot and place; the blocks are those of what stood for it.
  void take(Sequence& sequence, Sequence& stood_for);
  // Of a sequence that no step in flight has a row of: it begins anew when it runs again.
  void release(Sequence& sequence);
  // Adapters that take other places since the last call: the next step says so.
  std::vector<ipc::AdapterPlacement> take_placements() { return std::exchange(placements_, {}); }

 private:
  void take_slot(Sequence& sequence);

  const SchedulerOptions& options_;
  BlockPools pools_;
  AdapterPlaces adapters_;
  std::vector<SlotId> free_slots_;
  std::vector<ipc::AdapterPlacement> placements_;
};

}  // namespace refrain
