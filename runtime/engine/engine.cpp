#include "runtime/engine/engine.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/engine_door.h"
#include "runtime/engine/text_outputs.h"

namespace refrain {
namespace {

class CoreEngine final : public EngineDoor<EngineCore> {
 public:
  explicit CoreEngine(EngineParts parts)
      : EngineDoor(std::make_shared<EngineCore>(std::move(parts))) {}

  void on_state(std::function<void(GroupState, const std::string&)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().state_handler = handler;
    });
  }
  void on_progress(std::function<void(const StartProgress&)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().progress_handler = handler;
    });
  }
  void on_loss(std::function<void(const GroupLoss&)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().loss_handler = handler;
    });
  }
  void on_isolation(std::function<void(Isolation)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().isolation_handler = handler;
    });
  }
  void on_audit(std::function<void(const AuditFinding&)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().audit_handler = handler;
    });
  }
  void on_group_state(
      std::function<void(int32_t, GroupState, const std::string&)> handler) override {
    post([handler = std::move(handler)](EngineCore& core) {
      core.reports().group_state_handler = handler;
    });
  }
  void give_up_group(int32_t group) override {
    post([group](EngineCore& core) { core.give_up_group(group); });
  }
};

}  // namespace

const char* to_string(GroupState state) {
  switch (state) {
    case GroupState::kWaiting:
      return "waiting";
    case GroupState::kStarting:
      return "starting";
    case GroupState::kReady:
      return "ready";
    case GroupState::kFailed:
      return "failed";
    case GroupState::kStopped:
      return "stopped";
  }
  REFRAIN_CHECK(false, "no such group state: {}", static_cast<int>(state));
}

std::unique_ptr<Engine> make_engine(EngineParts parts) {
  return std::make_unique<CoreEngine>(std::move(parts));
}

Result<std::unique_ptr<Engine>> Engine::create(
    EngineConfig config, ModelConfig model, std::shared_ptr<const text::Tokenizer> tokenizer,
    IoContext& io, std::vector<std::shared_ptr<Executor>> output_executors,
    std::unique_ptr<ipc::Endpoint> endpoint) {
  return create(std::move(config), std::move(model),
                text_outputs(std::move(output_executors), std::move(tokenizer)), io,
                io.make_strand(), std::move(endpoint));
}

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config, ModelConfig model,
                                               MakeOutputs outputs, IoContext& io,
                                               std::shared_ptr<Executor> executor,
                                               std::unique_ptr<ipc::Endpoint> endpoint) {
  EngineParts parts;
  REFRAIN_ASSIGN_OR_RETURN(parts.model_digest, model_digest(config.model, config.draft_model));
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  REFRAIN_ASSIGN_OR_RETURN(parts.adapters, fixed_adapters(config.lora));
  if (!config.trace_file.empty()) {
    REFRAIN_ASSIGN_OR_RETURN(parts.trace, EngineTrace::create(config.trace_file));
  }
  parts.config = std::move(config);
  parts.model = std::move(model);
  parts.outputs = std::move(outputs);
  parts.endpoint = std::move(endpoint);
  parts.watch = [&io, executor](const ProcessIdentity& process, std::function<void()> gone) {
    return io.on_process_exit(process, executor, std::move(gone));
  };
  parts.engine_executor = std::move(executor);
  parts.kill = [](int64_t pid) {
    if (::kill(static_cast<pid_t>(pid), SIGKILL) != 0)
      log::warn("the worker with pid {} cannot be killed: {}", pid, std::strerror(errno));
  };
  parts.build_id = build_id();
  parts.process = own_process();
  parts.token_prefix = fmt::format("refrain-{}", getpid());
  parts.first_epoch = static_cast<Epoch>(milliseconds);  // above those of coordinators before
  return make_engine(std::move(parts));
}

}  // namespace refrain
