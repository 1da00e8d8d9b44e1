#pragma once
// One group of workers with all that serves requests on it: its scheduler while it is ready, the
// pace of its steps, the canaries that test it. What becomes of requests the engine decides, which
// hears of everything by the handlers. Lives on the engine's executor.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/engine_stats.h"
#include "runtime/engine/engine_trace.h"
#include "runtime/engine/grammar_gate.h"
#include "runtime/engine/group_canary.h"
#include "runtime/engine/group_counts.h"
#include "runtime/engine/group_transfers.h"
#include "runtime/engine/plan_timer.h"
#include "runtime/engine/step_pace.h"
#include "runtime/engine/worker_group.h"
#include "runtime/sched/scheduler.h"

namespace refrain {

struct GroupServiceHandlers {
  std::function<bool()> outputs_full;  // no further step should be planned
  std::function<void()> pump;          // it is time for plan(), as far as the engine allows it
  std::function<bool()> must_prove;    // whether new workers answer a canary before requests run
  std::function<void(GroupState)> on_state;
  std::function<void(const StartProgress&)> on_progress;
  std::function<void()> on_ready;                              // it has a scheduler, which is empty
  std::function<void(std::unique_ptr<Sequence>)> on_compiled;  // all ranks have its grammar
  std::function<void(int32_t rank, const ipc::AdapterLoaded&)> on_adapter;
  std::function<void(bool proved)> on_good_canary;  // proved: nothing ran before it
  std::function<void(RequestId)> on_no_logit;       // the request has no finite logit
  std::function<void(RequestId)> on_slow_grammar;   // a rank did not follow its grammar in time
  std::function<void(const ipc::StepResult&, const std::vector<TokenEvent>&)> on_tokens;
  // Between groups: where a rank's blocks can be read; a request that leaves with its first token;
  // one whose blocks did not come.
  std::function<void(int32_t rank, const ipc::KvExport&)> on_kv_export;
  std::function<void(std::unique_ptr<Sequence>)> on_handed_over, on_transfer_failed;
  std::function<void(PromisedRequest)> on_promised;  // it leaves when its step has ended
  std::function<void(RequestId)> on_withdrawn;       // it does not, after all
  std::function<void(const MovedBlocks&)> on_moved;  // a transfer to this group is done
  std::function<void()> on_transfers;  // some have ended: blocks of this group may be free
  std::function<void(const ipc::StepResult&)> on_audit;  // of a step that was audited
  std::function<void(GroupLoss)> on_loss;                // first of all
  struct Lost {
    Error error;
    bool for_good = false;
    bool served = false;   // it had a scheduler ...
    size_t in_flight = 0;  // ... with so many requests in flight
    bool alone = false;    // the only one over all replicas; the engine says so
    std::vector<std::unique_ptr<Sequence>> requests;  // that it had, oldest first
  };
  std::function<void(Lost)> on_lost;
};

class GroupService : public std::enable_shared_from_this<GroupService> {
 public:
  struct Parts {
    EngineConfig config;
    ModelConfig model;
    WorkerGroupOptions group;
    std::shared_ptr<Executor> executor;
    std::unique_ptr<ipc::Endpoint> endpoint;
    ProcessWatch watch;
    ProcessKill kill;
    std::shared_ptr<EngineTrace> trace;  // may be empty
  };
  GroupService(Parts parts, GroupServiceHandlers handlers);
  void connect();  // once, when a shared_ptr holds it
  void start() { group_->start(); }
  void stop(const std::string& reason);
  void give_up(std::string detector, std::string reason) {
    group_->give_up(std::move(detector), std::move(reason));
  }

  bool ready() const { return scheduler_ != nullptr; }
  bool proving() const { return proving_; }
  bool serves() const { return ready() && !proving_; }
  bool failed() const { return failed_; }
  GroupState state() const { return group_->state(); }
  const std::string& detail() const { return group_->detail(); }

  // The rest only while it is ready, but for find and cancel, which do nothing before.
  // A request with a grammar by way of the workers, who compile it first: on_compiled().
  Status add(std::unique_ptr<Sequence> sequence, const TokenDigest& given);
  Status schedule(std::unique_ptr<Sequence> sequence, const TokenDigest& given);
  const Sequence* find(RequestId id) const;
  void cancel(RequestId id);
  // A step is in flight, or a grammar is with the ranks.
  bool waits_for_ranks() const { return scheduler_->steps_in_flight() > 0 || !gate_.empty(); }
  bool empty() const {
    return gate_.empty() && scheduler_->num_unfinished() == (canary_.out() ? 1u : 0u);
  }
  // No request is in it, and none reads its blocks.
  bool idle() const { return !ready() || (empty() && scheduler_->stats().leases == 0); }
  // Its workers go, and others come; what it has goes to the engine as when it is lost.
  // `blameless`: that counts as no loss of its requests.
  void restart(std::string reason, bool blameless);
  // Its workers stay, and capture for this role.
  void change_role(ipc::GroupRole role, std::string reason);
  // What its next workers are for, and are told. While it has none.
  void set_role(ipc::GroupRole role, const ipc::WorkerConfig& worker);
  void set_held(bool held);  // for others to see
  int32_t num_ranks() const { return config_.worker.tensor_parallel_size; }
  uint64_t waiting() const { return scheduler_->num_waiting(); }
  std::vector<std::unique_ptr<Sequence>> release_all();  // nothing is in flight
  void set_trial(bool on) { trial_ = on; }               // then one step runs at a time
  // Its steps, which StepRounds plans: whether it takes one now, and the way to the ranks.
  bool takes_step();
  Scheduler& scheduler() { return *scheduler_; }
  void send(const StepPlan& plan);
  void send_grammars();
  void send_orders() { transfers_.send_orders(); }
  void pump() { handlers_.pump(); }
  bool steps_together() const { return ready() && group_->steps_together(); }  // with replicas
  size_t requests_in_flight() const { return ready() ? scheduler_->requests_in_flight() : 0; }
  TimePoint now() const { return executor_->clock().now(); }
  void publish_changes();  // of its counts, where something may have changed them
  const StatsBoard& stats() const { return stats_; }
  std::optional<double> seconds_a_token() const { return pace_.seconds_a_token(); }  // of prompts

  void tell(const ipc::Message& message) { group_->tell(message); }  // all ranks
  Epoch epoch() const { return group_->epoch(); }
  GroupTransfers& transfers() { return transfers_; }
  // LoRA adapters; nothing happens before it is ready.
  void adapter_loaded(AdapterId id);
  bool uses_adapter(AdapterId id) const { return ready() && scheduler_->adapter_in_use(id); }
  void adapter_unloaded(AdapterId id);

 private:
  void on_ready(const std::vector<ipc::StateGroup>& groups);
  void wake();
  void on_step(const ipc::StepResult& result);
  std::vector<RequestId> take_rows_without_logit();
  void on_grammar_ready(RequestId id);
  void on_lost(const Error& error, bool for_good);
  std::vector<std::unique_ptr<Sequence>> take_back();
  void publish_counts();
  void publish_group();

  EngineConfig config_;
  const ModelConfig model_;
  std::shared_ptr<Executor> executor_;
  GroupServiceHandlers handlers_;
  Parts parts_;  // what connect() needs
  std::shared_ptr<WorkerGroup> group_;
  std::unique_ptr<Scheduler> scheduler_;  // while the group is ready
  GrammarGate gate_;                      // likewise
  GroupCounts counts_;
  std::vector<TokenEvent> events_;
  StepPace pace_;
  PlanTimer plan_timer_;
  GroupCanary canary_;
  GroupTransfers transfers_;
  bool changed_ = true;  // since its counts were published
  bool wakes_ = false;   // wake()'s turn is to come
  bool trial_ = false;
  bool failed_ = false;     // for good
  bool proving_ = false;    // nothing runs before these workers have answered a canary
  bool blameless_ = false;  // the loss that comes is none of its requests'
  StatsBoard stats_;
  std::shared_ptr<EngineTrace> trace_;  // may be empty
};

}  // namespace refrain
