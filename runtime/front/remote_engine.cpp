#include "runtime/front/remote_engine.h"

#include <random>
#include <utility>

#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "runtime/engine/engine_door.h"
#include "runtime/engine/text_outputs.h"
#include "runtime/front/front_door.h"
#include "runtime/front/remote_core.h"

namespace refrain::front {
namespace {

constexpr int kManyFrames = 1 << 20;  // that may wait: acknowledged batches bound them first

class RemoteEngine final : public EngineDoor<RemoteCore> {
 public:
  explicit RemoteEngine(RemoteEngineParts parts)
      : EngineDoor(std::make_shared<RemoteCore>(std::move(parts))) {}

  void ask_stats(const StatsDone& done) override {
    post([done](RemoteCore& core) { core.ask_stats(done); });
  }
  void on_state(std::function<void(GroupState, const std::string&)> handler) override {
    post([handler = std::move(handler)](RemoteCore& core) { core.state_handler = handler; });
  }
  void on_group_state(std::function<void(int32_t, GroupState, const std::string&)>) override {}
  void on_progress(std::function<void(const StartProgress&)>) override {}
  void on_loss(std::function<void(const GroupLoss&)>) override {}
  void on_isolation(std::function<void(Isolation)>) override {}
  void on_audit(std::function<void(const AuditFinding&)>) override {}
  void give_up_group(int32_t) override {}  // the coordinator looks for those itself
};

// No other process, before or after, has the number.
uint64_t fresh_number() {
  std::random_device entropy;
  return uint64_t{entropy()} << 32 | (entropy() | 1u);
}

ipc::EndpointOptions socket_options(const std::string& address) {
  ipc::EndpointOptions options;
  options.address = address;
  options.identity = "coordinator";
  options.high_water_mark = kManyFrames;
  options.max_message_bytes = static_cast<int64_t>(kMaxFrameBytes);
  return options;
}

ProcessWatch watch_on(IoContext& io, const std::shared_ptr<Executor>& executor) {
  return [&io, executor](const ProcessIdentity& process, std::function<void()> gone) {
    return io.on_process_exit(process, executor, std::move(gone));
  };
}

}  // namespace

std::unique_ptr<Engine> make_remote_engine(RemoteEngineParts parts) {
  return std::make_unique<RemoteEngine>(std::move(parts));
}

Result<std::unique_ptr<Engine>> open_remote_engine(
    EngineConfig config, ModelConfig model, std::shared_ptr<const text::Tokenizer> tokenizer,
    IoContext& io, std::vector<std::shared_ptr<Executor>> output_executors,
    const std::string& address) {
  RemoteEngineParts parts;
  REFRAIN_ASSIGN_OR_RETURN(parts.adapters, fixed_adapters(config.lora));
  parts.config = std::move(config);
  parts.model = std::move(model);
  parts.executor = io.make_strand();
  parts.outputs = text_outputs(std::move(output_executors), std::move(tokenizer));
  REFRAIN_ASSIGN_OR_RETURN(parts.endpoint,
                           ipc::make_zmq_server(io, socket_options(address), parts.executor));
  parts.watch = watch_on(io, parts.executor);
  parts.process = own_process();
  parts.build_id = build_id();
  parts.first_session = fresh_number();
  return make_remote_engine(std::move(parts));
}

Result<std::shared_ptr<FrontDoor>> open_front_door(IoContext& io,
                                                   const std::shared_ptr<Executor>& executor,
                                                   const std::string& address) {
  FrontDoor::Parts parts;
  parts.executor = executor;
  REFRAIN_ASSIGN_OR_RETURN(parts.endpoint,
                           ipc::make_zmq_client(io, socket_options(address), executor));
  parts.watch = watch_on(io, executor);
  parts.process = own_process();
  parts.build_id = build_id();
  parts.incarnation = fresh_number();
  return std::make_shared<FrontDoor>(std::move(parts));
}

}  // namespace refrain::front
