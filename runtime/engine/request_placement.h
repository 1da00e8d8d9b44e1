#pragma once
// Where each request is: in which group, or in the queue while no group takes it or while it waits
// to be tried alone. What a lost group had goes on in another one at once, or waits for the next
// workers. Owned by the engine, on its executor.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/group_services.h"
#include "runtime/engine/kv_exchange.h"
#include "runtime/engine/live_requests.h"
#include "runtime/engine/router.h"
#include "runtime/engine/transfer_choice.h"
#include "runtime/engine/trials.h"

namespace refrain {

class RequestPlacement {
 public:
  // All outlive it. `isolation` hears of trials.
  RequestPlacement(const EngineConfig& config, GroupServices& groups, LiveRequests& live,
                   std::function<void(Isolation)> isolation);

  // To the group that takes it, or into the queue.
  void route(std::unique_ptr<Sequence> sequence);
  // Its first token is told, its blocks are under a lease. Goes to a decode group, which is
  // returned; LiveRequest::kNoGroup: there is none, and it goes on as any request does.
  int32_t hand_over(int32_t from, std::unique_ptr<Sequence> sequence);
  void transfer_failed(std::unique_ptr<Sequence> sequence);
  // It will be handed over when its step has ended: a decode group that has room begins to pull.
  // Or it will not, after all.
  void promise(int32_t from, PromisedRequest request);
  void withdraw(RequestId id);
  // All ranks have its grammar: the group's scheduler takes it.
  void schedule(int32_t index, std::unique_ptr<Sequence> sequence);
  // Out of its group, which is returned, or out of the queue (LiveRequest::kNoGroup).
  int32_t remove(RequestId id);
  // The same of one whose client leaves.
  int32_t cancel(RequestId id);
  // They end with this error, wherever they are.
  void end_where(const std::function<bool(const LiveRequest&)>& wanted, const Error& error);
  const Sequence* find(RequestId id) const;
  void gone(RequestId id);  // it has ended
  size_t num_queued() const { return queue_.size(); }
  void clear_queue() { queue_.clear(); }

  // Groups that come and go. Its workers are ready, and empty; they answered a canary, before any
  // request if `proved`; they are lost.
  void ready(int32_t index);
  void good_canary(int32_t index, bool proved);
  // Takes back what it had; `over`: no group is left. Returns how many of those that ran go on.
  size_t lost(int32_t index, GroupServiceHandlers::Lost lost, bool over);
  // What waits goes to groups that take it.
  void route_waiting();
  // A group that is held takes no requests; of the next workers of one that is lost, the role.
  void hold(int32_t index, bool held);
  void set_role(int32_t index, ipc::GroupRole role);
  void moved(const MovedBlocks& blocks) { choice_.moved(blocks); }  // between groups
  const TransferChoice& choice() const { return choice_; }
  void exported(int32_t index, int32_t rank, const ipc::KvExport& own) {
    kv_exchange_.exported(index, groups_[index].epoch(), rank, own);
  }

  // Trials: whether new workers have to prove themselves; a request completed; the group is for
  // suspects; its trials go on, true if it has any.
  void step_together() { trials_.hold_all_groups(); }  // all groups do
  bool must_prove() const { return trials_.must_prove(); }
  void completed() { trials_.completed(); }
  bool on_trial(int32_t index) const { return trials_.reserves(index); }
  bool go_on(int32_t index);

 private:
  void open_or_close(int32_t index);
  void open_or_close_all();
  bool may_hand_over(const Sequence& sequence) const;
  bool transfer_pays(const Sequence& sequence);
  void to_group(int32_t index, std::unique_ptr<Sequence> sequence);
  void leave_group(RequestId id);
  size_t take_back(int32_t index, GroupServiceHandlers::Lost lost);
  Trials::Hooks trial_hooks(std::function<void(Isolation)> isolation);
  void give_up(const Sequence& sequence, const Error& error);

  const EngineConfig& config_;
  GroupServices& groups_;
  LiveRequests& live_;
  Router router_;
  KvExchange kv_exchange_;
  TransferChoice choice_;
  std::vector<bool> held_;  // by group
  RequestQueue queue_;
  Trials trials_;
};

}  // namespace refrain
