#include "runtime/sched/preemption.h"

namespace refrain {

bool Preemption::make_room(Sequence& sequence, int32_t tokens) {
  while (stalled_ ? tokens > sequence.tokens_held : !pools_.ensure(sequence, tokens)) {
    short_of_blocks_ = true;
    // Who comes later takes none of what is too little for this one. Alone, it lacks what its own
    // steps in flight give back.
    stalled_ = stalled_ || queues_.num_holding() > 0 || queues_.running().size() == 1;
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
