#pragma once
// The engine of one process with all it needs: model configuration, text, I/O threads, endpoint.
// Made by coordinator (server), generate and bench (in process). Owned by main's thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/io_context.h"
#include "runtime/engine/engine.h"
#include "runtime/launch/run_directory.h"
#include "runtime/server/api_server.h"

namespace refrain {

class EngineHost {
 public:
  // Reads the model's configuration and text files, completes and checks `config`, binds
  // `config.ipc_address` (empty: one in a run directory of its own) and creates the engine. Nothing
  // runs before start().
  static Result<std::unique_ptr<EngineHost>> create(EngineConfig config);
  ~EngineHost();

  IoContext& io() { return io_; }
  Engine& engine() { return *engine_; }
  const EngineConfig& config() const { return engine_->config(); }
  const TextSide& text() const { return text_; }

  // Starts the engine and serves its I/O on this thread until io().stop().
  void run();

 private:
  EngineHost() = default;
  std::optional<RunDirectory> directory_;
  IoContext io_;
  TextSide text_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace refrain
