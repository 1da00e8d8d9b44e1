#pragma once
// The worker's device thread: owns the device and the model runner and makes every call to them.
// Others post commands to it; what comes of them is reported from it. A device failure is caught
// here, once, and reported; the thread then ends and so shall the process.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ipc/protocol/messages.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "worker/device/device.h"
#include "worker/runner/model_runner.h"
#include "worker/worker/device_commands.h"
#include "worker/worker/device_signs.h"
#include "worker/worker/fault_hook.h"
#include "worker/worker/group_transfers.h"
#include "worker/worker/hosted_group.h"

namespace refrain::worker {

// What a Worker asks of its device; each call returns at once, reports follow. Any thread.
class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;
  // Drops what is queued, gives up the group before and loads the new one.
  virtual void start_group(Epoch epoch, RunnerOptions options) = 0;
  // After what is queued: finishes the steps of the epoch before, whose results nobody wants, and
  // keeps the group for the new epoch. InitCache with the cache it has makes it ready again.
  virtual void adopt(Epoch epoch) = 0;
  // The same for another role, whose graphs are captured when InitCache comes (CG-23).
  virtual void recapture(Epoch epoch, ipc::WorkerConfig config) = 0;
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
  struct Options {
    DeviceFactory make_device;
    RunnerFactory make_runner;
    Duration heartbeat = std::chrono::milliseconds(250);
    std::function<void(DeviceReport)> report;  // called on the device or the transfer thread
    GroupTransfers::Address transfer_address = {};
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
  void start_group(Epoch epoch, RunnerOptions options) override {
    commands_.post_instead({epoch, std::move(options)});
  }
  void adopt(Epoch epoch) override { commands_.post(Adopt{epoch, std::nullopt}); }
  void recapture(Epoch epoch, ipc::WorkerConfig config) override {
    commands_.post(Adopt{epoch, std::move(config)});
  }
  void peers(ipc::Peers message) override { commands_.post_peers(std::move(message)); }
  void init_cache(const ipc::InitCache& message) override { commands_.post(message); }
  void step(ipc::Step message) override { commands_.post(std::move(message)); }
  void grammar(ipc::Grammar message) override { commands_.post(std::move(message)); }
  void load_adapter(ipc::LoadAdapter message) override { commands_.post(std::move(message)); }
  void unload_adapter(const ipc::UnloadAdapter& message) override { commands_.post(message); }
  void transfer(TransferThread::Command command) override { transfers_.post(std::move(command)); }
  ipc::Position position() const override { return signs_.position(); }
  // Ends after the command under way. False: it had not ended after `timeout`.
  bool stop(Duration timeout);

 private:
  void run(std::promise<Result<std::string>> started);
  void serve();
  Status handle(DeviceCommand command);

  Options options_;
  DeviceCommands commands_;
  DeviceSigns signs_;
  GroupTransfers transfers_;
  // Of the device thread.
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostedGroup> group_;
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace refrain::worker
