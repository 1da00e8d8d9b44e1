#pragma once
// Requests between groups: those that leave with their next token, their blocks under a lease, and
// those whose KV comes from another group (PREBUILT, docs/prefill-decode.md). While the step that
// gives the token runs, the lease is promised, and the other group may expect the request: it takes
// room for it and begins to pull. Owned by the Scheduler, on the engine's executor.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/sched/block_leases.h"
#include "runtime/sched/kv_arrivals.h"
#include "runtime/sched/planned_step.h"
#include "runtime/sched/scheduler_options.h"
#include "runtime/sched/sequence_queues.h"

namespace refrain {

// A request that leaves when the step has ended.
struct PromisedRequest {
  StepId step = 0;
  std::unique_ptr<Sequence> stands_for;  // it: its tokens, one more that is not known, the lease
};

class RequestTransfers {
 public:
  // All outlive it.
  RequestTransfers(const SchedulerOptions& options, SequenceQueues& queues,
                   SequenceResources& resources);

  // A running sequence has its token and no row in flight: it leaves. What its blocks hold is all
  // but that token.
  void hand_over(Sequence& sequence, TimePoint now);
  std::vector<std::unique_ptr<Sequence>> take_handed_over() {
    return std::exchange(handed_over_, {});
  }

  // Of a step that is sent: those that leave with the token that it gives.
  void promise(const PlannedStep& step);
  std::vector<PromisedRequest> take_promised() { return std::exchange(promised_, {}); }
  // A sequence whose lease is promised stays, or has ended.
  void withdraw(Sequence& sequence);
  std::vector<RequestId> take_withdrawn() { return std::exchange(withdrawn_, {}); }

  // A request that another group has promised. False: there is no room for it now, or nothing to
  // pull.
  bool expect(PromisedRequest request, TimePoint now);
  // It does not come, or not from there.
  void forget(RequestId id);
  // Gives back what is kept for those that have no slot or no place of their adapter now; when they
  // enter their blocks are pulled anew. False: there is none. What ranks write still is free later.
  bool forget_those_without_a_place();
  bool expects_any() const { return !expected_.empty(); }
  bool expects(const Sequence& sequence) const { return expected_.contains(sequence.id); }
  // One comes: what was expected of it counts only where it comes from there.
  void comes(const Sequence& sequence);

  // Gives a waiting sequence what it needs to run, blocks for all its tokens too. False: it does
  // not fit now.
  bool take_room(Sequence& sequence);
  // One that receives: those blocks are filled that the cache does not hold. It runs at once where
  // none are, and is given up where that cannot begin.
  void fill(Sequence& sequence, TimePoint now);
  // A rank says how far it is with the blocks that it pulls.
  void pulled(int32_t rank, const ipc::Pulled& report, TimePoint now);
  // Gives up what is overdue, and renews the leases of those that wait here.
  void check(TimePoint now);
  // A request that receives is cancelled.
  void cancel(Sequence& sequence);
  // Those whose blocks did not come: they hold nothing, and go on from their tokens elsewhere.
  std::vector<std::unique_ptr<Sequence>> take_failed() { return std::exchange(failed_, {}); }
  // What all ranks are to be told.
  std::vector<ipc::Message> take_orders() { return arrivals_.take_orders(); }
  std::vector<MovedBlocks> take_moved() { return arrivals_.take_moved(); }  // transfers, since then

  // All that receive are given up, and what has left is returned: the group is lost.
  std::vector<std::unique_ptr<Sequence>> release_all();

  bool any() const {
    return leases_.size() > 0 || !arrivals_.empty() || queues_.num_sourced() > 0 ||
           !failed_.empty();
  }
  uint64_t leases() const { return leases_.size(); }
  void when_given_back(std::function<void()> call) { leases_.when_given_back(std::move(call)); }
  uint64_t leases_expired() const { return leases_expired_; }
  TransferCounts counts() const { return arrivals_.counts(); }

 private:
  bool take_expected(Sequence& sequence);
  void arrive(Sequence& sequence);
  void fail(const KvArrivals::Ended& ended);
  void decided(const KvArrivals::Ended& ended);

  const SchedulerOptions& options_;
  SequenceQueues& queues_;
  SequenceResources& resources_;
  BlockLeases leases_;
  KvArrivals arrivals_;
  std::vector<std::unique_ptr<Sequence>> handed_over_, failed_;  // until they are taken
  std::vector<PromisedRequest> promised_;                        // likewise
  std::vector<RequestId> withdrawn_;                             // likewise
  // What stands for requests that are expected, with the blocks that are filled; joined: the
  // request has come and holds these.
  std::map<RequestId, std::unique_ptr<Sequence>> expected_;
  uint64_t leases_expired_ = 0;
};

}  // namespace refrain
