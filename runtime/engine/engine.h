#pragma once
// The engine actor: groups of workers and their schedulers, and the output side, behind one door.
// submit, cancel and the readers may be called from any thread; everything else happens on the
// engine's executor.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"
#include "runtime/config/model/model_config.h"
#include "runtime/engine/adapters.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/output_side.h"
#include "runtime/engine/request.h"
#include "runtime/sched/draft_control.h"
#include "runtime/sched/transfer_counts.h"

namespace refrain {

class Executor;
class IoContext;
struct StartProgress;  // start_progress.h
namespace text {
class Tokenizer;
}
namespace ipc {
class Endpoint;
}

enum class GroupState : uint8_t { kWaiting, kStarting, kReady, kFailed, kStopped };
const char* to_string(GroupState state);

// How a group came to its end: for the supervisor, and for the incident record.
struct GroupLoss {
  static constexpr size_t kMaxRequests = 256;
  int32_t group = 0;
  Epoch epoch = 0;
  // Process, heartbeat, progress, step deadline, worker, answers, canary, frames, start or start
  // timeout.
  std::string detector;
  static constexpr const char* kStartTimeout = "start timeout";
  std::string reason;               // one sentence
  bool for_good = false;            // the input is at fault, or the time to start is over
  bool planned = false;             // an operator asked for it (GroupOrder): no fault
  std::vector<int32_t> ranks;       // at fault, as far as this process knows
  std::vector<int64_t> pids;        // of its workers
  StepId last_step = 0;             // that all ranks answered
  std::vector<RequestId> requests;  // accepted and not ended; the oldest kMaxRequests of them
  uint64_t num_requests = 0;
};

// Requests that were in flight at two losses in a row run alone, one after the other, to find the
// one that ends its workers.
struct Isolation {
  bool on = false;
  // Losses before it whose cause is gone: a request has ended, and the workers are good without it.
  int explained = 0;
  int32_t group = 0;  // in which they run alone
};

// An audited step that differed beyond the bound (CG-41).
struct AuditFinding {
  StepId step = 0;
  int32_t differences = 0;
  std::string first;  // rank, program, key, op
  int32_t group = 0;
};

// What an operator asks of a group while the others serve (group_control.h).
struct GroupOrder {
  enum class What : uint8_t {
    kDrain,    // takes no more requests; done when it has ended those that it has
    kResume,   // takes requests again
    kRestart,  // drains, then its workers go, or with a role capture for it; done when it serves
  };
  int32_t group = 0;
  What what = What::kDrain;
  std::optional<ipc::GroupRole> role = std::nullopt;  // kRestart: what it is for then
};
using GroupOrderDone = std::function<void(Status)>;

// One row of CG-32's table.
struct GraphUse {
  std::string mode;
  int32_t num_tokens = 0;  // unpadded
  int32_t padded_tokens = 0;
  uint64_t count = 0;
  bool has_lora = false;  // of the key (CG-15)
};

// Of one group of workers.
struct GroupStats {
  int32_t group = 0;
  GroupState state = GroupState::kWaiting;
  std::string state_detail;  // "rank 1: capture 12/86"
  Epoch epoch = 0;
  uint64_t requests_running = 0, requests_waiting = 0;
  uint64_t steps_in_flight = 0;  // sent and not answered
  uint64_t prompt_tokens = 0, generated_tokens = 0, cached_prompt_tokens = 0;
  uint64_t preemptions = 0, steps = 0, group_restarts = 0;
  uint64_t cascade_steps = 0;  // of them: a prefix that all rows share was read once (CG-13)
  DraftCounts drafts;
  uint64_t audited_steps = 0, audit_differences = 0;  // CG-41
  ipc::GroupRole role = ipc::GroupRole::kBoth;
  bool held = false;                                 // takes no requests: it was told so
  uint64_t leases = 0;                               // blocks held for groups that read them
  uint64_t leases_expired = 0;                       // not renewed in time
  TransferCounts transfers;                          // from other groups to this one
  double audit_worst_logit = 0, audit_worst_kv = 0;  // of the largest magnitude beside it
  std::string audit_first;                           // the first difference beyond the bound
  uint64_t blocks_total = 0, blocks_free = 0;
  double seconds_since_last_answer = 0;  // of all ranks to a step (while idle, to a canary: R-11)
  double coordinator_us_per_step = 0;    // CPU, moving average
  std::vector<GraphUse> graph_uses;      // most frequent first
  std::vector<ipc::Ready> ready;         // per rank: manifest, memory account, warnings
  std::vector<std::string> devices;      // per rank, as its worker names it
};

// A consistent snapshot for /metrics, /cudagraphs, /health and the log: what is a group's, over all
// groups (sums; the best state; ranks one group after the other), and what is the requests'.
struct EngineStats : GroupStats {
  uint64_t requests_total = 0;  // accepted; each ends once, in one of the next four counts
  uint64_t requests_stopped = 0, requests_at_length = 0;  // complete: stop rule; length
  uint64_t requests_aborted = 0, requests_failed = 0;     // the client left; an error
  uint64_t requests_without_logit = 0;      // of the failed: the model had no finite logit
  uint64_t requests_with_slow_grammar = 0;  // likewise: it could not be followed in time
  uint64_t requests_resumed = 0;        // taken up again after a group was lost, each time counted
  double kv_link_bytes_per_second = 0;  // between groups, as measured; 0: not known
  uint64_t prompts_not_moved = 0;       // computed where they are answered, as moving takes longer
  uint64_t requests_queued = 0;         // of those that wait: not in a group yet
  std::vector<GroupStats> groups;
};

// What a probe asks for; cheap, however long the tables of EngineStats are.
struct EngineHealth {
  GroupState state = GroupState::kWaiting;
  std::string state_detail;
  Epoch epoch = 0;
  double seconds_since_last_answer = 0;
  double seconds_since_progress = 0;  // of a device within a step, or since an answer
  uint64_t requests_running = 0, requests_waiting = 0;
  std::vector<GroupState> groups = {};  // of several
};

class Engine {
 public:
  // `endpoint` is the bound server endpoint the workers connect to. One thread runs `io`; it and
  // those of the output executors have ended when the engine is destroyed.
  static Result<std::unique_ptr<Engine>> create(
      EngineConfig config, ModelConfig model, std::shared_ptr<const text::Tokenizer> tokenizer,
      IoContext& io, std::vector<std::shared_ptr<Executor>> output_executors,
      std::unique_ptr<ipc::Endpoint> endpoint);
  // The same with another output side, which is told on `executor`: the engine's own, of `io`.
  static Result<std::unique_ptr<Engine>> create(EngineConfig config, ModelConfig model,
                                                MakeOutputs outputs, IoContext& io,
                                                std::shared_ptr<Executor> executor,
                                                std::unique_ptr<ipc::Endpoint> endpoint);
  virtual ~Engine() = default;

  virtual void start() = 0;  // waits for workers; the group's life runs by itself from here
  // Accepts or refuses at once (prompt too long, queue full, bad parameters). The sink gets every
  // output; after it got a finish it is never called again.
  virtual Result<RequestId> submit(GenerateRequest request, OutputSink sink) = 0;
  // Whether submit would refuse the request for what it is, not for what runs now.
  virtual Status check(const GenerateRequest& request) const = 0;
  // Refuses when every request would be refused now: for what waits, or because of a shutdown.
  virtual Status accepting() = 0;
  virtual AdmissionStats admission() const = 0;
  // LoRA adapters by the names that requests give, as any thread sees them.
  virtual std::optional<AdapterId> find_adapter(const std::string& name) const = 0;
  virtual std::vector<AdapterSource> adapters() const = 0;
  // `done` is called once, on the engine's executor: every rank has it, or why not.
  virtual void load_adapter(AdapterSource source, AdapterDone done) = 0;
  // `done`: its last request has ended and the ranks have dropped it. No request finds it
  // meanwhile.
  virtual void unload_adapter(const std::string& name, AdapterDone done) = 0;
  virtual void cancel(RequestId id) = 0;  // its blocks are free by the next step
  virtual EngineStats stats() const = 0;
  // Both as they are when it is asked, wherever the engine runs; `done` is called once, on any
  // thread.
  using StatsDone = std::function<void(const EngineStats&, const AdmissionStats&)>;
  virtual void ask_stats(const StatsDone& done) { done(stats(), admission()); }
  virtual EngineHealth health() const = 0;
  // Called once on every change of state (ready: a group serves; failed: none ever will; …), on
  // the engine's executor.
  virtual void on_state(std::function<void(GroupState, const std::string& detail)> handler) = 0;
  // The same of every single group.
  virtual void on_group_state(
      std::function<void(int32_t group, GroupState, const std::string& detail)> handler) = 0;
  // How the workers' start goes (progress_line, progress_bar), on the engine's executor.
  virtual void on_progress(std::function<void(const StartProgress&)> handler) = 0;
  // Called once for every group that is lost, on the engine's executor.
  virtual void on_loss(std::function<void(const GroupLoss&)> handler) = 0;
  // Called when an isolation begins, is over or has explained losses, on the engine's executor.
  virtual void on_isolation(std::function<void(Isolation)> handler) = 0;
  // Called for the first audits that find a difference (kMaxAuditRecords), on the engine's
  // executor.
  virtual void on_audit(std::function<void(const AuditFinding&)> handler) = 0;
  static constexpr int kMaxAuditRecords = 8;      // they would displace records of losses
  virtual void give_up_group(int32_t group) = 0;  // nobody starts its workers again
  // `done` is called once, on the engine's executor.
  virtual void control_group(const GroupOrder& order, GroupOrderDone done) = 0;
  virtual void drain(std::function<void()> drained) = 0;  // stop admitting, finish what runs
  virtual void stop() = 0;  // tells workers to shut down; outstanding requests end with an error
  virtual const ModelConfig& model() const = 0;
  virtual const EngineConfig& config() const = 0;
};

}  // namespace refrain
