#pragma once
// The engine's inside: requests and the groups of workers that serve them, tied together by events
// (a request, an answer, a change of a group), never by polling. A router says which group takes a
// request; what a lost group had goes on in the others, or waits. Its own executor owns it; the
// output processors run on others. Engine::create wires it to the real world (engine.cpp), tests
// wire it to a ManualScheduler.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/engine/admission.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/engine_trace.h"
#include "runtime/engine/group_control.h"
#include "runtime/engine/group_service.h"
#include "runtime/engine/kv_exchange.h"
#include "runtime/engine/output_side.h"
#include "runtime/engine/request_rules.h"
#include "runtime/engine/router.h"
#include "runtime/engine/transfer_choice.h"
#include "runtime/engine/trials.h"

namespace refrain {

struct EngineParts {
  EngineConfig config;
  ModelConfig model;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<Executor> engine_executor;
  std::vector<std::shared_ptr<Executor>> output_executors;  // at least one
  std::unique_ptr<ipc::Endpoint> endpoint;                  // calls on engine_executor
  ProcessWatch watch;
  ProcessKill kill;
  std::string build_id, model_digest, token_prefix;
  ProcessIdentity process;
  Epoch first_epoch = 1;
  std::vector<AdapterSource> adapters = {};      // LoRA adapters that are there from the start
  std::shared_ptr<EngineTrace> trace = nullptr;  // null: none is asked for
};

std::unique_ptr<Engine> make_engine(EngineParts parts);

class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  explicit EngineCore(EngineParts parts);
  void connect();  // once, when a shared_ptr holds it

  // Any thread.
  Status check(const GenerateRequest& request) const { return rules_.check(request); }
  Result<RequestId> submit(GenerateRequest request, OutputSink sink);
  Status accepting();
  AdmissionStats admission() const { return admission_.stats(); }
  EngineStats stats() const;
  EngineHealth health() const;
  Executor& executor() { return *executor_; }
  const ModelConfig& model() const { return model_; }
  const EngineConfig& config() const { return config_; }
  const Adapters& adapters() const { return adapters_; }

  // On the engine's executor.
  void start();
  void cancel(RequestId id);
  void stop();
  void give_up_group(int32_t group);
  void control_group(const GroupOrder& order, const GroupOrderDone& done);
  void drain(std::function<void()> drained);
  void load_adapter(AdapterSource source, const AdapterDone& done);
  void unload_adapter(const std::string& name, const AdapterDone& done);

  std::function<void(GroupState, const std::string&)> state_handler;
  std::function<void(int32_t, GroupState, const std::string&)> group_state_handler;
  std::function<void(const StartProgress&)> progress_handler;
  std::function<void(const GroupLoss&)> loss_handler;
  std::function<void(Isolation)> isolation_handler;
  std::function<void(const AuditFinding&)> audit_handler;

 private:
  struct Accepted {
    RequestId id = 0;
    std::vector<TokenId> prompt;
    SequenceParams params;
    std::optional<TimePoint> deadline;
    size_t output_thread = 0;
  };
  // A request that has not ended.
  struct Live {
    int32_t num_logprobs = -1;
    TokenDigest given;  // its prompt and the tokens its client was given
    size_t output_thread = 0;
    AdapterId adapter = 0;
    TimerId deadline = 0;
    int32_t group = kNoGroup;  // that has it
  };
  static constexpr int32_t kNoGroup = -1;  // it waits in queue_

  void enter(Accepted accepted);
  void deliver(const ipc::StepResult& result, const std::vector<TokenEvent>& events);
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  void end_at(RequestId id, TimePoint deadline);
  void refuse_from_now_on(Error error);
  void fail_all(const Error& error);
  void remove(RequestId id);
  void ended_by_stop_string(RequestId id);
  void request_gone(RequestId id, FinishReason reason);
  void tell_if_drained();
  void watch_queue();
  void end_overdue();
  const Sequence* find(RequestId id) const;
  void publish();

  // adapter_life.cpp: LoRA adapters that come and go
  void ask_for_adapters(int32_t index);
  void on_adapter(int32_t index, int32_t rank, const ipc::AdapterLoaded& answer);
  void adapter_refused(int32_t index, Adapters::Answered answered);
  void drop_adapter(AdapterId id, const Error& error);
  void finish_unloads();
  void adapters_lost(int32_t index, const Error& error);

  // engine_groups.cpp: requests and groups that come and go
  void add_group(int32_t index, std::unique_ptr<ipc::Endpoint> endpoint);
  GroupServiceHandlers handlers_of(int32_t index);
  GroupService& group(int32_t index) { return *groups_[static_cast<size_t>(index)]; }
  bool any_ready() const;
  bool all_failed() const;
  void open_or_close(int32_t index);
  void open_or_close_all();
  void route(std::unique_ptr<Sequence> sequence);
  void route_waiting();
  bool may_hand_over(const Sequence& sequence) const;
  bool transfer_pays(const Sequence& sequence);
  void on_handed_over(int32_t index, std::unique_ptr<Sequence> sequence);
  void on_transfer_failed(std::unique_ptr<Sequence> sequence);
  void to_group(int32_t index, std::unique_ptr<Sequence> sequence);
  void pump(int32_t index);
  void pump_all();
  void on_group_state(int32_t index, GroupState state);
  void on_ready(int32_t index);
  void on_compiled(int32_t index, std::unique_ptr<Sequence> sequence);
  void on_good_canary(int32_t index, bool proved);
  void on_tokens(const ipc::StepResult& result, const std::vector<TokenEvent>& events);
  void on_no_logit(RequestId id);
  void on_slow_grammar(RequestId id);
  void on_audit(int32_t index, const ipc::StepResult& result);
  void on_lost(int32_t index, GroupServiceHandlers::Lost lost);
  void take_back(int32_t index, GroupServiceHandlers::Lost lost);
  void tell_of_loss(int32_t index, GroupLoss loss);
  void give_up(const Sequence& sequence, const Error& error);
  uint64_t waiting() const;
  GroupControl::Hooks control_hooks();
  void look_at_control();
  void change_role(int32_t index, ipc::GroupRole role);

  const EngineConfig config_;
  const ModelConfig model_;
  const RequestRules rules_;
  std::shared_ptr<Executor> executor_;
  std::unique_ptr<OutputSide> outputs_;
  EngineParts parts_;  // what connect() needs
  std::vector<std::shared_ptr<GroupService>> groups_;
  Router router_;
  KvExchange kv_exchange_;
  TransferChoice transfer_choice_;
  GroupControl control_;

  RequestQueue queue_;  // while no group takes them, and those that wait to be tried alone
  Trials trials_;
  std::unordered_map<RequestId, Live> alive_;
  std::function<void()> drained_;
  bool stopped_ = false;
  std::optional<std::pair<TimePoint, TimerId>> queue_timer_;  // for the earliest deadline
  GroupState state_ = GroupState::kWaiting;                   // the best group's, as it was told

  Adapters adapters_;
  bool unloading_ = false;  // an adapter goes when its last request has ended

  // Read by submit on any thread.
  Admission admission_;
  std::atomic<int64_t> unfinished_{0};
  mutable std::mutex refusal_mutex_;
  std::optional<Error> refusal_;  // why no request is accepted any more

  RequestBoard stats_;
  std::shared_ptr<EngineTrace> trace_;  // may be empty
  int audits_told_ = 0;                 // to the audit_handler
};

}  // namespace refrain
