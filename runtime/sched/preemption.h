#pragma once
// Room for the blocks of running sequences: where they are short, the last running one gives its
// own up, at once, or when the last in-flight row of it is in; where only one runs, what is kept
// for requests that cannot run beside it. Owned by the Scheduler, on the engine's executor.

#include <cstdint>

#include "runtime/sched/block_pools.h"
#include "runtime/sched/request_transfers.h"
#include "runtime/sched/sequence_queues.h"

namespace refrain {

class Preemption {
 public:
  // All outlive it.
  Preemption(SequenceQueues& queues, BlockPools& pools, RequestTransfers& transfers)
      : queues_(queues), pools_(pools), transfers_(transfers) {}

  // A step is planned.
  void begin() { short_of_blocks_ = stalled_ = false; }
  // Blocks for `tokens` tokens in all; false: not in this step. The sequence may have been put back
  // itself.
  bool ensure(Sequence& sequence, int32_t tokens) {
    return tokens <= sequence.tokens_held || make_room(sequence, tokens);
  }
  // In this step somebody lacked blocks: nobody new is admitted.
  bool short_of_blocks() const { return short_of_blocks_; }
  uint64_t count() const { return count_; }

 private:
  bool make_room(Sequence& sequence, int32_t tokens);

  SequenceQueues& queues_;
  BlockPools& pools_;
  RequestTransfers& transfers_;
  bool short_of_blocks_ = false;
  bool stalled_ = false;  // somebody waits for blocks that come back
  uint64_t count_ = 0;
};

}  // namespace refrain
