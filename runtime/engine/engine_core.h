#pragma once
// The engine's inside: requests and the groups of workers that serve them, tied together by events
// (a request, an answer, a change of a group), never by polling. What each party owns is a type of
// its own: the intake, the requests that live, their placement and deadlines, the groups, the
// adapters, the reports. Its own executor owns it; the output processors run on others.
// Engine::create wires it to the real world (engine.cpp), tests wire it to a ManualScheduler.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/adapter_loads.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/engine_reports.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/group_control.h"
#include "runtime/engine/group_services.h"
#include "runtime/engine/live_requests.h"
#include "runtime/engine/request_deadlines.h"
#include "runtime/engine/request_intake.h"
#include "runtime/engine/request_placement.h"
#include "runtime/engine/step_rounds.h"

namespace refrain {

class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  explicit EngineCore(EngineParts parts);
  void connect();  // once, when a shared_ptr holds it

  // Any thread.
  Status check(const GenerateRequest& request) const { return intake_.check(request); }
  Result<RequestId> submit(GenerateRequest request, OutputSink sink);
  Status accepting() { return intake_.accepting(); }
  AdmissionStats admission() const { return intake_.stats(); }
  EngineStats stats() const;
  EngineHealth health() const;
  Executor& executor() { return *executor_; }
  const ModelConfig& model() const { return model_; }
  const EngineConfig& config() const { return config_; }
  const Adapters& adapters() const { return loads_.adapters(); }

  // On the engine's executor.
  void start();
  void cancel(RequestId id);
  void stop();
  void give_up_group(int32_t group);
  void control_group(const GroupOrder& order, const GroupOrderDone& done);
  void drain(std::function<void()> drained) { intake_.drain(std::move(drained)); }
  void load_adapter(AdapterSource source, const AdapterDone& done) {
    loads_.load(std::move(source), done);
  }
  void unload_adapter(const std::string& name, const AdapterDone& done) {
    loads_.unload(name, done);
  }
  EngineReports& reports() { return reports_; }

 private:
  // What requests do.
  void enter(AcceptedRequest accepted);
  void ended_by_stop_string(RequestId id);
  void request_gone(RequestId id, const LiveRequest& live);

  // What groups do.
  GroupServiceHandlers handlers_of(int32_t index);
  void on_ready(int32_t index);
  void on_good_canary(int32_t index, bool proved);
  void on_tokens(int32_t index, const ipc::StepResult&, const std::vector<TokenEvent>& events);
  void on_loss(int32_t index, GroupLoss loss);
  void on_lost(int32_t index, GroupServiceHandlers::Lost lost);
  GroupControl::Hooks control_hooks();
  void look_at_control();

  void pump(int32_t index);
  void pump_all();
  void publish();
  TimePoint now() const { return executor_->clock().now(); }

  const EngineConfig config_;
  const ModelConfig model_;
  std::shared_ptr<Executor> executor_;
  EngineParts parts_;                   // what connect() needs
  std::shared_ptr<EngineTrace> trace_;  // may be empty
  RequestBoard stats_;
  EngineReports reports_;
  RequestIntake intake_;
  GroupServices groups_;
  StepRounds rounds_{groups_};
  AdapterLoads loads_;
  LiveRequests live_;
  RequestPlacement placement_;
  RequestDeadlines deadlines_;
  GroupControl control_;
  bool stopped_ = false;
};

}  // namespace refrain
