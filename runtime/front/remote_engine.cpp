#include "runtime/front/remote_engine.h"

#include <random>
#include <utility>

#include "runtime/actor/io_context.h"
#include "runtime/base/build_info.h"
#include "runtime/engine/text_outputs.h"
#include "runtime/front/front_door.h"
#include "runtime/front/remote_core.h"

namespace refrain::front {
namespace {

constexpr int kManyFrames = 1 << 20;  // that may wait: acknowledged batches bound them first

// The door: hands every call to the core on its executor.
class RemoteEngine final : public Engine {
 public:
  explicit RemoteEngine(RemoteEngineParts parts)
      : core_(std::make_shared<RemoteCore>(std::move(parts))) {
    core_->connect();
  }

  void start() override {
    post([](RemoteCore& core) { core.start(); });
  }
  Result<RequestId> submit(GenerateRequest request, OutputSink sink) override {
    return core_->submit(std::move(request), std::move(sink));
  }
  Status check(const GenerateRequest& request) const override { return core_->check(request); }
  Status accepting() override { return core_->accepting(); }
  AdmissionStats admission() const override { return core_->admission(); }
  std::optional<AdapterId> find_adapter(const std::string& name) const override {
    return core_->adapters().find(name);
  }
  std::vector<AdapterSource> adapters() const override { return core_->adapters().list(); }
  void load_adapter(AdapterSource source, AdapterDone done) override {
    post([source = std::move(source), done = std::move(done)](RemoteCore& core) {
      core.load_adapter(source, done);
    });
  }
  void unload_adapter(const std::string& name, AdapterDone done) override {
    post([name, done = std::move(done)](RemoteCore& core) { core.unload_adapter(name, done); });
  }
  void cancel(RequestId id) override {
    post([id](RemoteCore& core) { core.cancel(id); });
  }
  EngineStats stats() const override { return core_->stats(); }
  void ask_stats(const StatsDone& done) override {
    post([done](RemoteCore& core) { core.ask_stats(done); });
  }
  EngineHealth health() const override { return core_->health(); }
  void on_state(std::function<void(GroupState, const std::string&)> handler) override {
    post([handler = std::move(handler)](RemoteCore& core) { core.state_handler = handler; });
  }
  void on_group_state(std::function<void(int32_t, GroupState, const std::string&)>) override {}
  void on_progress(std::function<void(const StartProgress&)>) override {}
  void on_loss(std::function<void(const GroupLoss&)>) override {}
  void on_isolation(std::function<void(Isolation)>) override {}
  void on_audit(std::function<void(const AuditFinding&)>) override {}
  void give_up_group(int32_t) override {}  // the coordinator looks for those itself
  void control_group(const GroupOrder& order, GroupOrderDone done) override {
    post([order, done = std::move(done)](RemoteCore& core) { core.control_group(order, done); });
  }
  void drain(std::function<void()> drained) override {
    post([drained = std::move(drained)](RemoteCore& core) { core.drain(drained); });
  }
  void stop() override {
    post([](RemoteCore& core) { core.stop(); });
  }
  const ModelConfig& model() const override { return core_->model(); }
  const EngineConfig& config() const override { return core_->config(); }

 private:
  void post(std::function<void(RemoteCore&)> work) {
    core_->executor().post([weak = std::weak_ptr(core_), work = std::move(work)] {
      if (const auto core = weak.lock()) work(*core);
    });
  }
  std::shared_ptr<RemoteCore> core_;
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
