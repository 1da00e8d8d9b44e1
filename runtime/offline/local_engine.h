#pragma once
// An engine in this process with workers of its own in others: what `refrain generate`, `bench` and
// the library use. Blocking calls for one thread, which outlives the workers; I/O has its own.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "runtime/bootstrap/engine_host.h"
#include "runtime/bootstrap/progress_display.h"
#include "runtime/supervise/signal_hold.h"
#include "runtime/supervise/supervisor.h"

namespace refrain {

// Whether SIGINT and SIGTERM interrupt the engine's calls, or are the process's own matter.
enum class Signals : uint8_t { kInterrupt, kLeave };

class LocalEngine {
 public:
  // Reads the model's configuration and text files and makes the engine; no process yet.
  static Result<std::unique_ptr<LocalEngine>> create(EngineConfig config,
                                                     Signals signals = Signals::kInterrupt);
  ~LocalEngine();  // ends the workers and waits for them

  // Spawns the workers and waits until they are ready; an interrupt ends the wait.
  Status start();
  void interrupt();  // any thread
  // Why no request will be answered any more; nothing while the engine lives. Any thread.
  std::optional<Error> ended();

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

  std::optional<SignalHold> signals_;  // until they are watched
  bool watches_signals_ = false;
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<Supervisor> supervisor_;
  std::shared_ptr<Executor> strand_;
  ProgressDisplay display_{stderr_is_terminal()};  // used on the engine's executor
  std::thread io_thread_;
  std::mutex mutex_;  // guards what follows; I/O threads report, main waits
  std::condition_variable changed_;
  std::set<int32_t> starting_;         // groups
  bool some_serve_ = false;            // or did
  bool ready_ = false;                 // and none starts
  std::optional<int> ended_;           // the workers are gone, with this exit code
  std::optional<std::string> broken_;  // the I/O thread ended by an exception
  std::optional<std::string> failed_;  // the workers said that the input is at fault
  bool interrupted_ = false;
};

}  // namespace refrain
