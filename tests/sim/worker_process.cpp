#include "tests/sim/worker_process.h"

#include <fmt/format.h>

#include <utility>

namespace refrain::sim {

WorkerProcess::WorkerProcess(WorkerSettings worker, SimDeviceSettings device,
                             std::unique_ptr<ipc::Endpoint> endpoint,
                             std::shared_ptr<ProcessExecutor> executor, worker::ProcessWatch watch,
                             std::function<void(int code)> on_exit)
    : settings(std::move(worker)), executor_(std::move(executor)), endpoint_(endpoint.get()) {
  device.report = [this](worker::DeviceReport report) {
    executor_->post(
        [this, report = std::move(report)]() mutable { worker_->on_report(std::move(report)); });
  };
  device_ = std::make_unique<SimDevice>(std::move(device), executor_);
  worker::WorkerOptions options;
  options.group = settings.group;
  options.rank = settings.rank;
  options.tensor_parallel_size = settings.tensor_parallel_size;
  options.coordinator = fmt::format("(says pid {})", settings.pid);  // as its log names it
  worker::Worker::Identity identity;
  identity.model_digest = settings.model_digest;
  identity.process = {settings.realm, settings.pid, 0};
  worker_ = std::make_unique<worker::Worker>(options, std::move(identity), executor_,
                                             std::move(endpoint), *device_, std::move(watch),
                                             [this, on_exit = std::move(on_exit)](int code) {
                                               kill();
                                               on_exit(code);
                                             });
}

void WorkerProcess::start() {
  worker_->start();
  device_->start();
}

void WorkerProcess::kill() {
  alive_ = false;
  executor_->kill();
  endpoint_->close();
}

}  // namespace refrain::sim
