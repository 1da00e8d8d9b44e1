#include "runtime/sched/preemption.h"

namespace refrain {

bool Preemption::make_room(Sequence& sequence, int32_t tokens) {
  while (stalled_ ? tokens > sequence.tokens_held : !pools_.ensure(sequence, tokens)) {
    short_of_blocks_ = true;
    // Alone, it lacks what its own steps in flight give back, or what is kept for others: those
    // that wait for its slot or its adapter's place would wait for ever.
    const bool alone = queues_.running().size() == 1 && queues_.num_holding() == 0;
    if (!stalled_ && alone && sequence.in_flight == 0 && transfers_.forget_those_without_a_place())
      continue;
    // Who comes later takes none of what is too little for this one.
    stalled_ = stalled_ || queues_.num_holding() > 0 || alone;
    if (stalled_) return false;
    const bool itself = queues_.running().back() == &sequence;
    queues_.preempt_last();
    ++count_;
    stalled_ = queues_.num_holding() > 0;
    if (itself || stalled_) return false;
  }
  return true;
}

}  // namespace refrain
