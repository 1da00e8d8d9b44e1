#include "runtime/sched/sequence_resources.h"

#include <algorithm>

namespace refrain {

SequenceResources::SequenceResources(const SchedulerOptions& options)
    : options_(options),
      pools_({options.groups, options.block_size,
              options.max_num_batched_tokens + options.draft_reach(), options.enable_prefix_caching,
              options.watermark, options.draft_head ? 1 : 0}),
      adapters_(options.max_loras) {
  for (SlotId slot = options.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void SequenceResources::find_prefix(Sequence& sequence) const {
  const auto sendable =
      static_cast<int64_t>(options_.largest_part() / ipc::kBlockUpdateBytes / pools_.num_paged());
  pools_.find_prefix(sequence,
                     std::min(sequence.max_prefix_tokens(), sendable * options_.block_size));
}

bool SequenceResources::take(Sequence& sequence, int32_t computed, int32_t length,
                             int32_t first_end, bool others_run) {
  if (!pools_.enter(sequence, computed, length, first_end, others_run)) return false;
  take_slot(sequence);
  return true;
}

void SequenceResources::take(Sequence& sequence, Sequence& stood_for) {
  pools_.move(stood_for, sequence);
  take_slot(sequence);
}

void SequenceResources::take_slot(Sequence& sequence) {
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence.params.adapter != 0)
    sequence.adapter_place = adapters_.enter(sequence.params.adapter, placements_);
}

void SequenceResources::release(Sequence& sequence) {
  pools_.release(sequence);
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  if (sequence.adapter_place >= 0) adapters_.leave(sequence.adapter_place);
  sequence.adapter_place = -1;
  sequence.setup_sent = sequence.sampled = false;
  sequence.num_computed = sequence.num_scheduled = 0;
  sequence.split_tokens = sequence.next_part = 0;
  sequence.planned = 0;
}

}  // namespace refrain
