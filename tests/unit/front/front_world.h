#pragma once
// A front, coordinators that come and go, and mock ranks, under one ManualScheduler. The engine
// that tests ask is the front's.

#include <memory>
#include <utility>

#include "runtime/front/front_door.h"
#include "runtime/front/remote_engine.h"
#include "tests/unit/engine_actor/engine_world.h"

namespace refrain::testing {

class FrontWorld : public EngineWorld {
 public:
  using EngineWorld::EngineWorld;
  ~FrontWorld() {
    core.reset();
    door.reset();
  }

  void start_front() {
    const auto executor = scheduler.make_executor("front");
    front::RemoteEngineParts parts;
    parts.config = config;
    parts.model = model;
    parts.executor = executor;
    parts.outputs = text_outputs({scheduler.make_executor("output")}, tokenizer);
    parts.endpoint = *front_hub->make_server(executor);
    parts.watch = watch_on(executor);
    parts.process = {"here", ++front_pid, 7};
    parts.build_id = "build";
    parts.first_session = static_cast<uint64_t>(1000 * front_pid);
    parts.adapters = adapters;
    engine = front::make_remote_engine(std::move(parts));
    engine->on_state([this](GroupState state, const std::string&) { states.push_back(state); });
    engine->start();
  }
  // A coordinator with fresh workers.
  void start_coordinator(MockRankOptions options = {}) {
    hub = ipc::InprocHub::create();
    const auto executor = scheduler.make_executor("engine");
    ++coordinator_pid;
    front::FrontDoor::Parts door_parts;
    door_parts.executor = executor;
    door_parts.endpoint = *front_hub->make_client(
        executor, "coordinator-" + std::to_string(coordinator_pid), 1 << 16);
    door_parts.watch = watch_on(executor);
    door_parts.process = {"here", coordinator_pid, 7};
    door_parts.build_id = build_id;
    door_parts.incarnation = static_cast<uint64_t>(coordinator_pid);
    door = std::make_shared<front::FrontDoor>(std::move(door_parts));
    EngineParts parts;
    parts.config = config;
    parts.model = model;
    parts.engine_executor = executor;
    parts.outputs = door->outputs();
    parts.endpoint = *hub->make_server(executor);
    parts.watch = watch_on(executor);
    parts.kill = [](int64_t) {};
    parts.build_id = "build";
    parts.model_digest = "digest";
    parts.process.realm = "here";
    parts.token_prefix = "group";
    parts.adapters = adapters;
    core = make_engine(std::move(parts));
    core->start();
    executor->post([this] { door->start(*core); });
    add_ranks(std::move(options));
    ranks.back()->hold_answers = holds_answers;
    scheduler.run_until_idle();
  }
  // As by SIGKILL: with what it has to say unsaid.
  void kill_coordinator() {
    core.reset();
    door.reset();
    ranks.clear();
    gone(coordinator_pid);
  }
  void kill_front() {
    engine.reset();
    gone(front_pid);
  }
  void pass(int milliseconds) {
    for (int i = 0; i < milliseconds; i += 10) scheduler.advance(std::chrono::milliseconds(10));
  }

  std::shared_ptr<ipc::InprocHub> front_hub = ipc::InprocHub::create();
  std::shared_ptr<front::FrontDoor> door;
  std::unique_ptr<Engine> core;  // the coordinator's
  std::vector<AdapterSource> adapters;
  std::string build_id = "build";
  bool holds_answers = false;  // ranks of the next coordinators answer steps when they are told
  int64_t front_pid = 5000, coordinator_pid = 6000;

 private:
  ProcessWatch watch_on(std::shared_ptr<Executor> executor) {
    return [this, executor](const ProcessIdentity& process, std::function<void()> gone) {
      watched[process.pid] = [executor, gone = std::move(gone)] { executor->post(gone); };
      return true;
    };
  }
  void gone(int64_t pid) {
    gone_pids.insert(pid);
    if (const auto found = watched.find(pid); found != watched.end())
      std::exchange(found->second, [] {})();
    scheduler.run_until_idle();
  }
};

}  // namespace refrain::testing
