#pragma once
// The worker's device thread: owns the device and the model runner and makes every call to them.
// Others post commands to it; what comes of them is reported from it. A device failure is caught
// here, once, and reported; the thread then ends and so shall the process.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "ipc/protocol/messages.h"
#include "ipc/shm/flight_ring.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/runner/model_runner.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/worker/fault_hook.h"
#include "worker/worker/start_times.h"

namespace refrain::worker {

// A message for the coordinator. With an exit code it is the last one: the process ends with it.
struct DeviceReport {
  Epoch epoch = 0;
  ipc::Message message;
  std::optional<int> exit_code = std::nullopt;
};

// What a Worker asks of its device; each call returns at once, reports follow. Any thread.
class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;
  // Drops what is queued, gives up the group before and loads the new one.
  virtual void start_group(Epoch epoch, RunnerOptions options) = 0;
  // After what is queued: finishes the steps of the epoch before, whose results nobody wants, and
  // keeps the group for the new epoch. InitCache with the cache it has makes it ready again.
  virtual void adopt(Epoch epoch) = 0;
  virtual void peers(ipc::Peers message) = 0;  // of the group that starts; it waits for them
  virtual void init_cache(const ipc::InitCache& message) = 0;
  virtual void step(ipc::Step message) = 0;
  virtual void grammar(ipc::Grammar message) = 0;
  virtual void load_adapter(ipc::LoadAdapter message) = 0;
  virtual void unload_adapter(const ipc::UnloadAdapter& message) = 0;
  // Blocks of other groups; beside the steps. Dropped where there is no group that exports its own.
  virtual void transfer(TransferThread::Command command) = 0;
  // Of the device now, even while it hangs in a step.
  virtual ipc::Position position() const = 0;
};

class DeviceThread final : public WorkerDevice {
 public:
  using DeviceFactory = std::function<Result<std::unique_ptr<Device>>()>;
  using RunnerFactory = std::function<Result<std::unique_ptr<ModelRunner>>(
      RunnerOptions, Device&, ModelRunner::ProgressFn)>;
  struct Options {
    DeviceFactory make_device;
    RunnerFactory make_runner;
    Duration heartbeat = std::chrono::milliseconds(250);
    std::function<void(DeviceReport)> report;  // called on the device or the transfer thread
    // Where ranks of other groups ask for blocks (ipc::transfer_address_of); may block. Null:
    // nobody can.
    std::function<Result<std::string>()> transfer_address = {};
    int flight_fd = -1;          // of the flight recorder; -1: none
    FaultHook* fault = nullptr;  // outlives the thread
  };

  explicit DeviceThread(Options options);
  ~DeviceThread() override;  // stops and joins
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // Starts the thread and makes the device; its name, or why there is none (kUnavailable: it is not
  // open after `timeout`, and the thread is still in it). Once.
  Result<std::string> start(Duration timeout);
  void start_group(Epoch epoch, RunnerOptions options) override;
  void adopt(Epoch epoch) override;
  void peers(ipc::Peers message) override;
  void init_cache(const ipc::InitCache& message) override;
  void step(ipc::Step message) override;
  void grammar(ipc::Grammar message) override;
  void load_adapter(ipc::LoadAdapter message) override;
  void unload_adapter(const ipc::UnloadAdapter& message) override;
  void transfer(TransferThread::Command command) override;
  ipc::Position position() const override;
  // Ends after the command under way. False: it had not ended after `timeout`.
  bool stop(Duration timeout);

 private:
  struct StartGroup {
    Epoch epoch;
    RunnerOptions options;
  };
  struct Adopt {
    Epoch epoch;
  };
  struct Compiled {
    Epoch epoch;
    RequestId request;
  };
  using Command = std::variant<StartGroup, Adopt, ipc::InitCache, ipc::Step, ipc::Grammar, Compiled,
                               ipc::LoadAdapter, ipc::UnloadAdapter>;

  void post(Command command);
  std::optional<Command> take(Duration timeout);
  bool stopping();
  void run(std::promise<Result<std::string>> started);
  void serve();
  Status handle(Command command);
  Status load(StartGroup command);
  Result<std::vector<ipc::RankAddress>> meet(const ipc::RankAddress& mine, Duration timeout);
  bool overtaken();
  Status keep(Adopt command);
  Status prepare(const ipc::InitCache& message);
  Status capture(const std::vector<int64_t>& num_blocks);
  Status start_transfers();
  void end_transfers();
  Status submit(const ipc::Step& message);
  Status compile(const ipc::Grammar& message);
  Status load_now(const ipc::LoadAdapter& message);
  void finish(ipc::StepResult result);
  void on_progress(const ipc::Progress& progress);
  void beat();
  void passed(StepId step);
  void record(ipc::FlightRecord entry);
  void report(ipc::Message message);
  void fail_with(const Error& error);

  Options options_;
  // Of the device thread.
  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelRunner> runner_;
  Epoch epoch_ = 0;
  bool moves_blocks_ = false;  // of the group, and the own rank in it
  int rank_ = 0;
  std::optional<StartTimes> start_times_;
  bool ready_ = false;
  ipc::Loaded loaded_;                // of the group, with the cache that it was given
  std::optional<ipc::Ready> report_;  // what it said when it was ready
  ipc::FlightRing flight_;
  uint64_t beats_ = 0;
  TimePoint last_beat_;
  TimePoint last_progress_;
  ipc::StartPhase last_phase_ = ipc::StartPhase::kConnect;
  // Written by the device thread, read by any.
  std::shared_ptr<const LaunchCounter> launches_;  // set before start() returns; null: not counted
  std::atomic<StepId> last_step_{0};
  std::atomic<StepId> last_submitted_{0};
  std::atomic<uint64_t> launches_before_{0};  // when last_step_ was done
  // Shared.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Command> commands_;
  std::atomic<size_t> num_commands_{0};  // commands_.size(), for who cannot wait for the mutex
  std::unique_ptr<TransferThread> transfers_;  // while blocks may move; set by the device thread
  std::optional<ipc::Peers> peers_;            // until the group that starts has taken them
  bool stopping_ = false;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace refrain::worker
