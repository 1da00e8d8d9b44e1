#pragma once
// The engine of one process with all it needs: model configuration, text, I/O threads, endpoint.
// Made by coordinator (server, or behind a front), generate and bench (in process). Owned by main's
// thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/actor/io_context.h"
#include "runtime/actor/io_threads.h"
#include "runtime/engine/engine.h"
#include "runtime/front/front_door.h"
#include "runtime/server/text_side.h"
#include "runtime/supervise/run_directory.h"

namespace refrain {

class EngineHost {
 public:
  // Reads the model's configuration and text files, completes and checks `config`, binds
  // `config.ipc_address` (empty: one in a run directory of its own) and creates the engine. Nothing
  // runs before start().
  static Result<std::unique_ptr<EngineHost>> create(EngineConfig config, int output_threads = 1);
  // The same without texts: the front at this address has them, and the clients.
  static Result<std::unique_ptr<EngineHost>> create_behind_front(EngineConfig config,
                                                                 const std::string& address);
  ~EngineHost();

  IoContext& io() { return io_; }
  // Where tokens become text and answers: request.output_thread says which one.
  IoThreads& outputs() { return outputs_; }
  Engine& engine() { return *engine_; }
  const EngineConfig& config() const { return engine_->config(); }
  const TextSide& text() const { return text_; }
  front::FrontDoor* front() { return door_.get(); }  // null: clients are this process's

  // Starts the output threads and the engine, whose I/O is served on this thread until io().stop();
  // then all have ended. An exception on any of the threads ends it and comes out here.
  void run();

 private:
  explicit EngineHost(int output_threads) : outputs_(output_threads, "output") {}
  Result<std::unique_ptr<ipc::Endpoint>> bind(EngineConfig& config);

  std::optional<RunDirectory> directory_;
  IoContext io_;
  IoThreads outputs_;  // connections may be held by the engine's sinks, so it goes after the engine
  TextSide text_;
  std::shared_ptr<Executor> strand_;  // the engine's, behind a front
  std::shared_ptr<front::FrontDoor> door_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace refrain
