#pragma once
// The inside of a RemoteEngine. Its executor owns it; what is said to be any thread's is not.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/actor/executor.h"
#include "runtime/actor/run_later.h"
#include "runtime/engine/request_intake.h"
#include "runtime/front/link.h"
#include "runtime/front/mirror.h"
#include "runtime/front/orders.h"
#include "runtime/front/remote_adapters.h"
#include "runtime/front/remote_engine.h"
#include "runtime/front/request_ledger.h"

namespace refrain::front {

class RemoteCore : public std::enable_shared_from_this<RemoteCore> {
 public:
  explicit RemoteCore(RemoteEngineParts parts);
  void connect();  // once, when a shared_ptr holds it

  // Any thread.
  Result<RequestId> submit(GenerateRequest request, OutputSink sink);
  Status check(const GenerateRequest& request) const { return intake_.check(request); }
  Status accepting() { return intake_.accepting(); }
  AdmissionStats admission() const;
  EngineStats stats() const { return mirror_.stats(); }
  EngineHealth health() const { return mirror_.health(now()); }
  const RemoteAdapters& adapters() const { return adapters_; }
  const ModelConfig& model() const { return model_; }
  const EngineConfig& config() const { return config_; }
  Executor& executor() { return *executor_; }

  void start();
  void cancel(RequestId id);
  void ask_stats(const Engine::StatsDone& done);
  void load_adapter(AdapterSource source, const AdapterDone& done) {
    adapters_.load(std::move(source), done);
  }
  void unload_adapter(const std::string& name, const AdapterDone& done) {
    adapters_.unload(name, done);
  }
  void control_group(const GroupOrder& order, const GroupOrderDone& done);
  void drain(std::function<void()> drained) { intake_.drain(std::move(drained)); }
  void stop();
  std::function<void(GroupState, const std::string&)> state_handler;

  static constexpr Duration kStatsLimit = std::chrono::seconds(1);
  static constexpr Duration kLook = std::chrono::milliseconds(50);

 private:
  void enter(RequestId id, LedgerEntry entry);
  void submit_to_coordinator(RequestId id, LedgerEntry& entry);
  void submit_all();
  // It is told how it ended, if it was not told yet.
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  void gone(RequestId id);
  void stopped_by_string(RequestId id);

  void on_frame(const ipc::PeerId& from, std::span<const std::byte> frame);
  void greeted(const ipc::PeerId& from, const Hello& hello);
  void begin_session();
  void lose_coordinator(const std::string& why);
  void session_broke(const std::string& why);
  void look();
  bool send(const Message& message);

  void on(Tokens& tokens);
  void on(Ended& ended);
  void on(Answer& answer);
  void on(Stats& stats);
  void on(State& state);
  template <class Unexpected>
  void on(Unexpected& /*message*/);
  void took(bool all);
  void end_orders();
  void set_state(GroupState state, const std::string& detail);
  TimePoint now() const { return executor_->clock().now(); }

  const EngineConfig config_;
  const ModelConfig model_;
  std::shared_ptr<Executor> executor_;
  MakeOutputs make_outputs_;
  Link link_;
  ProcessWatch watch_;
  const ProcessIdentity process_;
  const std::string build_id_;
  RequestIntake intake_;
  Mirror mirror_;
  RemoteAdapters adapters_;
  RequestLedger ledger_;
  std::unique_ptr<OutputSide> outputs_;
  RunLater run_later_;

  ipc::PeerId peer_;
  Hello coordinator_;     // the last there was
  bool present_ = false;  // it lives, as far as is known
  bool stopped_ = false;
  bool broken_ = false;            // the session is to begin anew
  bool looks_ = false;             // a timer looks at times
  uint64_t requests_waiting_ = 0;  // in the coordinator's queues
  uint64_t next_session_;
  uint32_t owed_ = 0;  // batches that it was not told of
  Orders<Status> orders_;
  Orders<EngineStats, AdmissionStats> asked_;
  GroupState state_ = GroupState::kWaiting;
};

}  // namespace refrain::front
