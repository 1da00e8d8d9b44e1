#pragma once
// An engine in this process with workers of its own in others: what `refrain generate` and `bench`
// use. Blocking calls for main's thread; I/O runs on threads of its own.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/launch/engine_host.h"
#include "runtime/launch/progress_display.h"
#include "runtime/launch/signal_hold.h"
#include "runtime/launch/supervisor.h"

namespace refrain {

class LocalEngine {
 public:
  // Reads the model's configuration and text files and makes the engine; no process yet.
  static Result<std::unique_ptr<LocalEngine>> create(EngineConfig config);
  ~LocalEngine();  // ends the workers and waits for them

  // Spawns the workers and waits until they are ready; SIGINT and SIGTERM end the wait.
  Status start();

  Engine& engine() { return host_->engine(); }
  const EngineConfig& config() const { return host_->config(); }
  const TextSide& text() const { return host_->text(); }

  // Runs all requests as one continuous batch and waits for every last output. `on_output` (may be
  // empty) is called for each output, on one thread. The error says which request failed and why.
  using OutputHandler = std::function<void(size_t index, const RequestOutput& output)>;
  Result<std::vector<RequestOutput>> run(std::vector<GenerateRequest> requests,
                                         const OutputHandler& on_output = {});

 private:
  LocalEngine() = default;
  void watch();
  void on_end(int code);
  void stop();

  SignalHold signals_;  // until they are watched
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<Supervisor> supervisor_;
  std::shared_ptr<Executor> strand_;
  ProgressDisplay display_{stderr_is_terminal()};  // used on the engine's executor
  std::thread io_thread_;
  std::mutex mutex_;  // guards what follows; I/O threads report, main waits
  std::condition_variable changed_;
  bool ready_ = false;
  std::optional<int> ended_;           // the workers are gone, with this exit code
  std::optional<std::string> broken_;  // the I/O thread ended by an exception
  std::optional<std::string> failed_;  // the workers said that the input is at fault
  bool interrupted_ = false;
};

}  // namespace refrain
