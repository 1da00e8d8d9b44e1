#pragma once
// The engine's inside: queue, scheduler, worker group and output processor, tied together by events
// (a request, an answer, a change of the group), never by polling. Its own executor owns it; the
// output processors run on others. Engine::create wires it to the real world (engine.cpp), tests
// wire it to a ManualScheduler.

#include <atomic>
#include <chrono>
#include <deque>
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
#include "runtime/engine/logit_failures.h"
#include "runtime/engine/output_side.h"
#include "runtime/engine/step_pace.h"
#include "runtime/engine/worker_group.h"
#include "runtime/sched/scheduler.h"

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
};

std::unique_ptr<Engine> make_engine(EngineParts parts);

class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  explicit EngineCore(EngineParts parts);
  void connect();  // once, when a shared_ptr holds it

  // Any thread.
  Status check(const GenerateRequest& request) const;
  Result<RequestId> submit(GenerateRequest request, OutputSink sink);
  Status accepting();
  AdmissionStats admission() const { return admission_.stats(); }
  EngineStats stats() const { return stats_.snapshot(); }
  EngineHealth health() const { return stats_.health(); }
  Executor& executor() { return *executor_; }
  const ModelConfig& model() const { return model_; }
  const EngineConfig& config() const { return config_; }

  // On the engine's executor.
  void start();
  void cancel(RequestId id);
  void stop();
  void drain(std::function<void()> drained);

  std::function<void(GroupState, const std::string&)> state_handler;
  std::function<void(const StartProgress&)> progress_handler;
  std::function<void(const GroupLoss&)> loss_handler;
  std::function<void(Isolation)> isolation_handler;
  std::function<void(const AuditFinding&)> audit_handler;

 private:
  static constexpr Duration kCanaryAfter = std::chrono::seconds(4);  // without an answer

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
    TimerId deadline = 0;
  };

  std::vector<TokenId> end_tokens(const SamplingParams& sampling) const;
  SequenceParams sequence_params(RequestId id, const GenerateRequest& request) const;
  void enter(Accepted accepted);
  void to_scheduler(std::unique_ptr<Sequence> sequence);
  void queue_to_scheduler();
  void pump();
  bool too_early_to_plan();
  void on_step(ipc::StepResult result);
  void note_audit(const ipc::StepResult& result);  // audit.cpp
  void tell_of_loss(GroupLoss loss);
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
  bool started(RequestId id) const;  // it runs, or ran before its workers were lost
  void publish_counts();
  void publish_group();

  // recovery.cpp: workers that come and go
  void on_ready(int64_t num_kv_blocks);
  void on_lost(const Error& error, bool for_good);
  void take_back(const Error& error);

  // canary.cpp: are the workers good, and whose rows have no finite logit
  void watch_idle();
  void send_canary();
  std::optional<bool> take_canary();
  void on_good_canary();
  void end_rows_without_logit();

  // isolation.cpp: the request that ends its workers is found and ended, the others go on
  void queue_again(std::unique_ptr<Sequence> sequence);
  void give_up(const Sequence& sequence, const Error& error);
  void isolate_suspects(const Error& error);
  void go_on_with_trials();
  void note_completed();
  void tell_isolation(int explained);
  void blame_for_losses(RequestId id);
  bool begin_trial();
  void end_isolation();

  const EngineConfig config_;
  const ModelConfig model_;
  const size_t depth_;
  std::shared_ptr<Executor> executor_;
  std::unique_ptr<OutputSide> outputs_;
  std::shared_ptr<WorkerGroup> group_;
  EngineParts parts_;  // what connect() needs

  std::unique_ptr<Scheduler> scheduler_;  // while the group is ready
  // While it is not, and those that wait for others to be tried alone; what ran before comes first.
  std::deque<std::unique_ptr<Sequence>> queue_;
  struct Trials {
    bool on = false;        // suspects run alone, one after the other; all others are in queue_
    RequestId current = 0;  // 0: none
    int ended = 0, ended_in_a_row = 0;
  } trials_;
  // Losses of requests that are gone: explained when the next workers are good.
  int to_explain_ = 0;
  bool proving_ = false;  // nothing runs before these workers have answered a canary
  LogitFailures logit_failures_;
  uint64_t num_answers_ = 0;  // to steps, of all groups
  std::unordered_map<RequestId, Live> alive_;
  std::vector<TokenEvent> events_;
  std::function<void()> drained_;
  bool stopped_ = false;
  std::optional<std::pair<TimePoint, TimerId>> queue_timer_;  // for the earliest deadline
  StepPace pace_;
  bool crowded_ = false;  // the last step that was planned left requests waiting
  std::optional<std::pair<TimePoint, TimerId>> plan_timer_;
  bool canary_out_ = false;
  TimePoint last_answer_;  // of all ranks to a step, while the group is ready
  TimerId idle_timer_ = 0;
  SchedulerStats past_;  // counts of the schedulers of earlier epochs

  // Read by submit on any thread.
  Admission admission_;
  std::atomic<int64_t> unfinished_{0};
  mutable std::mutex refusal_mutex_;
  std::optional<Error> refusal_;  // why no request is accepted any more

  StatsBoard stats_;
  int audits_told_ = 0;  // to the audit_handler
};

}  // namespace refrain
