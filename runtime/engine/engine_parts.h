#pragma once
// What an engine is put together from. Engine::create fills it with the real world, tests with a
// ManualScheduler's.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/adapters.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_trace.h"
#include "runtime/engine/group_service.h"
#include "runtime/engine/output_side.h"

namespace refrain {

struct EngineParts {
  EngineConfig config;
  ModelConfig model;
  MakeOutputs outputs;
  std::shared_ptr<Executor> engine_executor;
  std::unique_ptr<ipc::Endpoint> endpoint;  // calls on engine_executor
  ProcessWatch watch;
  ProcessKill kill;
  std::string build_id, model_digest, token_prefix;
  ProcessIdentity process;
  Epoch first_epoch = 1;
  std::vector<AdapterSource> adapters = {};      // LoRA adapters that are there from the start
  std::shared_ptr<EngineTrace> trace = nullptr;  // null: none is asked for
};

// A request on its way to the engine's executor.
struct AcceptedRequest {
  RequestId id = 0;
  std::vector<TokenId> prompt;
  SequenceParams params;
  std::optional<BegunAnswer> begun;
  std::optional<TimePoint> deadline;
  size_t output_thread = 0;
};

std::unique_ptr<Engine> make_engine(EngineParts parts);

// What the service of one of its groups is made of.
GroupService::Parts group_parts(const EngineParts& parts, const Group& group,
                                std::unique_ptr<ipc::Endpoint> endpoint);

}  // namespace refrain
