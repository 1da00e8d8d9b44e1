#pragma once
// The engine as the front has it: in another process, behind a socket. Requests outlive the
// coordinator: what their clients were given is kept here, and the next coordinator goes on behind
// it. Deciding who may join the queue, and texts, are done here.

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/rank_processes.h"

namespace refrain::front {

struct RemoteEngineParts {
  EngineConfig config;
  ModelConfig model;
  std::shared_ptr<Executor> executor;
  MakeOutputs outputs;
  std::unique_ptr<ipc::Endpoint> endpoint;  // a server; calls on `executor`
  ProcessWatch watch;
  ProcessIdentity process;
  std::string build_id;
  uint64_t first_session = 1;  // no other front has it, or one soon after it
  std::vector<AdapterSource> adapters = {};
};

// What the coordinator tells of groups beside their state (losses, audits, the start's progress) it
// tells its supervisor; handlers for that are never called here.
std::unique_ptr<Engine> make_remote_engine(RemoteEngineParts parts);

// With a socket at `address`, and text on `output_executors`.
Result<std::unique_ptr<Engine>> open_remote_engine(
    EngineConfig config, ModelConfig model, std::shared_ptr<const text::Tokenizer> tokenizer,
    IoContext& io, std::vector<std::shared_ptr<Executor>> output_executors,
    const std::string& address);

}  // namespace refrain::front
