#pragma once
// A worker process of the simulation: the real Worker and CoordinatorLink over a simulated device.
// Owned by the Cluster; runs on its own ProcessExecutor.

#include <functional>
#include <memory>
#include <string>

#include "tests/sim/process_executor.h"
#include "tests/sim/sim_device.h"
#include "worker/worker/worker.h"

namespace refrain::sim {

struct WorkerSettings {
  int32_t group = 0;
  int32_t rank = 0;
  int32_t tensor_parallel_size = 1;
  int64_t pid = 0;
  std::string realm;
  std::string model_digest;
};

class WorkerProcess {
 public:
  // `on_exit` is called from inside a turn of the process, when it ends by itself.
  WorkerProcess(WorkerSettings settings, SimDeviceSettings device,
                std::unique_ptr<ipc::Endpoint> endpoint, std::shared_ptr<ProcessExecutor> executor,
                worker::ProcessWatch watch, std::function<void(int code)> on_exit);

  void start();
  void kill();  // SIGKILL
  void stop() { executor_->stop(); }
  void resume() { executor_->resume(); }
  bool alive() const { return alive_; }
  SimDevice& device() { return *device_; }
  const SimDevice& device() const { return *device_; }

  const WorkerSettings settings;

 private:
  std::shared_ptr<ProcessExecutor> executor_;
  ipc::Endpoint* endpoint_;  // the worker's
  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<worker::Worker> worker_;
  bool alive_ = true;
};

}  // namespace refrain::sim
