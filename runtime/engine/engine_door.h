#pragma once
// An Engine's door: what must be done on its core's executor is posted there, the rest is the
// core's to answer on any thread. `Core` is the engine's inside, in this process (EngineCore) or
// across a socket (runtime/front); reports are the derived class's.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/actor/executor.h"
#include "runtime/engine/engine.h"

namespace refrain {

template <class Core>
class EngineDoor : public Engine {
 public:
  void start() override {
    post([](Core& core) { core.start(); });
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
    post([source = std::move(source), done = std::move(done)](Core& core) {
      core.load_adapter(source, done);
    });
  }
  void unload_adapter(const std::string& name, AdapterDone done) override {
    post([name, done = std::move(done)](Core& core) { core.unload_adapter(name, done); });
  }
  void cancel(RequestId id) override {
    post([id](Core& core) { core.cancel(id); });
  }
  EngineStats stats() const override { return core_->stats(); }
  EngineHealth health() const override { return core_->health(); }
  void control_group(const GroupOrder& order, GroupOrderDone done) override {
    post([order, done = std::move(done)](Core& core) { core.control_group(order, done); });
  }
  void drain(std::function<void()> drained) override {
    post([drained = std::move(drained)](Core& core) { core.drain(drained); });
  }
  void stop() override {
    post([](Core& core) { core.stop(); });
  }
  const ModelConfig& model() const override { return core_->model(); }
  const EngineConfig& config() const override { return core_->config(); }

 protected:
  explicit EngineDoor(std::shared_ptr<Core> core) : core_(std::move(core)) { core_->connect(); }

  void post(std::function<void(Core&)> work) {
    core_->executor().post([weak = std::weak_ptr(core_), work = std::move(work)] {
      if (const auto core = weak.lock()) work(*core);
    });
  }

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace refrain
