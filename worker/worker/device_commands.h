#pragma once
// What the device thread is told, in order: posted by any thread, taken by the device thread.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "worker/runner/model_runner.h"

namespace refrain::worker {

struct StartGroup {
  Epoch epoch;
  RunnerOptions options;
};
struct Adopt {
  Epoch epoch;
  std::optional<ipc::WorkerConfig> config;  // of another role; none: as it is
};
struct GrammarCompiled {
  Epoch epoch;
  RequestId request;
};
struct AdapterRead {
  Epoch epoch;
  AdapterId id;
};
using DeviceCommand =
    std::variant<StartGroup, Adopt, ipc::InitCache, ipc::Step, ipc::Grammar, GrammarCompiled,
                 ipc::LoadAdapter, AdapterRead, ipc::UnloadAdapter>;

class DeviceCommands {
 public:
  void post(DeviceCommand command);
  // What is queued is dropped, and so are the peers of a group that was starting.
  void post_instead(StartGroup command);
  // Of the group that starts, which waits for them.
  void post_peers(ipc::Peers message);
  void stop();

  // The next one; none within `timeout` (zero: does not wait), or it is to stop.
  std::optional<DeviceCommand> take(Duration timeout);
  // The addresses of all ranks. What comes instead is another group's start.
  Result<std::vector<ipc::RankAddress>> wait_for_peers(Duration timeout);
  // Whether something is queued, without waiting for the mutex.
  bool any() const { return num_commands_ > 0; }
  // Something is queued behind the command under way, or it is to stop.
  bool overtaken() const;
  bool stopping() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<DeviceCommand> commands_;
  std::atomic<size_t> num_commands_{0};  // commands_.size()
  std::optional<ipc::Peers> peers_;      // until the group that starts has taken them
  bool stopping_ = false;
};

}  // namespace refrain::worker
