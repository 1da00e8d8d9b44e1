#pragma once
// Requests whose KV blocks are on their way from another group: what the ranks are told to pull,
// how far they are, and what of it may be used. A transfer is good when every rank has all
// of it and the owner's COMMIT is valid. The blocks of one that is given up are in quarantine until
// every rank has said that it writes them no more. One may begin early, while the owner's step
// still writes what is pulled: then it is decided when its request has come. Owned by the
// Scheduler, on the engine's executor.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/sched/block_pools.h"
#include "runtime/sched/transfer_counts.h"

namespace refrain {

class KvArrivals {
 public:
  KvArrivals(BlockPools& pools, int32_t num_ranks, Duration timeout)
      : pools_(pools), num_ranks_(num_ranks), timeout_(timeout) {}

  // Of a lease that is granted or renewed now: twice as long as a transfer may make no progress.
  TimePoint lease_end(TimePoint now) const { return now + 2 * timeout_; }

  // The sequence holds the blocks that it needs, those that it lacks are pulled. False: the lease
  // does not have them all. With a `step` of the owner's it begins early, for a sequence that
  // stands for the one to come.
  bool begin(Sequence& sequence, TimePoint now, StepId step = 0);

  struct Ended {
    Sequence* sequence = nullptr;
    bool good = false;  // false: its blocks are in quarantine
    std::string why;    // not good
  };
  // The request of an early one has come, and holds what `stands_for` held. Set when all ranks have
  // all of it.
  std::optional<Ended> join(const Sequence& stands_for, Sequence& sequence, TimePoint now);
  // A rank of the reader says how far it is. Set when a transfer was decided by it.
  std::optional<Ended> report(int32_t rank, const ipc::Pulled& pulled, TimePoint now);
  // Transfers that made no progress in time, or whose owner is gone: they are given up.
  std::vector<Ended> give_up_overdue(TimePoint now);
  // Its request has ended.
  void abandon(Sequence& sequence);

  // Transfers that are done; and what all ranks are to be told, in order.
  std::vector<MovedBlocks> take_moved() { return std::exchange(moved_, {}); }
  std::vector<ipc::Message> take_orders() { return std::exchange(orders_, {}); }
  bool empty() const { return transfers_.empty(); }
  TransferCounts counts() const;

 private:
  struct Transfer {
    Sequence* sequence = nullptr;  // null: given up
    std::vector<int64_t> bytes;    // by rank
    std::vector<bool> ended;       // by rank
    std::vector<int64_t> early;    // by rank, of `bytes`
    int32_t tokens = 0;            // that the reader lacked
    bool is_early = false;         // its request has not come
    TimePoint begun, deadline;     // not of an early one
    std::vector<HeldBlocks> quarantine;
  };
  using Map = std::map<TransferId, Transfer>;
  std::optional<std::vector<ipc::KvBlocks>> to_fill(const Sequence& sequence) const;
  Sequence* give_up(Map::value_type& entry);
  static bool drained(const Transfer& transfer);
  Map::iterator transfer_of(const Sequence& sequence);
  Ended decide(Map::value_type& entry, TimePoint now);

  BlockPools& pools_;
  const int32_t num_ranks_;
  const Duration timeout_;
  Map transfers_;
  TransferId next_ = 1;
  std::vector<ipc::Message> orders_;
  std::vector<MovedBlocks> moved_;
  TransferCounts counts_;
};

}  // namespace refrain
