#include "worker/worker/worker.h"

#include <unistd.h>

#include <climits>
#include <utility>

#include "runtime/base/build_info.h"
#include "runtime/base/log.h"

namespace refrain::worker {

namespace {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

Worker::Worker(const WorkerOptions& options, Identity identity, std::shared_ptr<Executor> executor,
               std::unique_ptr<ipc::Endpoint> endpoint, DeviceThread& device,
               std::function<void(int)> on_exit)
    : options_(options),
      identity_(std::move(identity)),
      executor_(std::move(executor)),
      link_(std::move(endpoint), executor_->clock()),
      device_(device),
      on_exit_(std::move(on_exit)) {}

void Worker::start() {
  link_.start({
      [this](Epoch epoch, const ipc::Welcome& welcome) { on_welcome(epoch, welcome); },
      [this](const std::string& reason) {
        end(kExitConfig, fmt::format("refused by the coordinator: {}", reason));
      },
      [this](ipc::Message message) { on_message(std::move(message)); },
      [this](const std::string& reason) { end(kExitInternal, reason); },
  });
  say_hello();
  watch_coordinator();
}

void Worker::say_hello() {
  ipc::Hello hello;
  hello.build_id = build_id();
  hello.model_digest = identity_.model_digest;
  hello.rank = options_.rank;
  hello.tensor_parallel_size = options_.tensor_parallel_size;
  hello.pid = getpid();
  hello.host = host_name();
  hello.device = identity_.device;
  awaiting_welcome_ = true;
  last_hello_ = executor_->clock().now();
  link_.send_hello(hello);
}

// Repeats Hello while nobody answers; notices a coordinator that fell silent and looks for another.
void Worker::watch_coordinator() {
  const TimePoint now = executor_->clock().now();
  if (awaiting_welcome_) {
    if (now - last_hello_ >= options_.hello_interval) say_hello();
  } else if (now - link_.last_heard() >= options_.coordinator_timeout) {
    log::warn("the coordinator is silent; waiting for it or its successor at {}",
              options_.coordinator);
    say_hello();
  }
  watch_timer_ = executor_->post_after(options_.heartbeat, [this] { watch_coordinator(); });
}

void Worker::on_welcome(Epoch epoch, const ipc::Welcome& welcome) {
  if (ended_) return;
  awaiting_welcome_ = false;
  if (welcome.config.tensor_parallel_size != options_.tensor_parallel_size) {
    return fail_configuration(
        fmt::format("the coordinator runs tensor-parallel-size {}, this worker was started with {}",
                    welcome.config.tensor_parallel_size, options_.tensor_parallel_size));
  }
  log::info("joined group {} of {}, epoch {}", welcome.group_token, options_.coordinator, epoch);
  RunnerOptions runner;
  runner.model_directory = options_.model;
  runner.model = identity_.model;
  runner.config = welcome.config;
  runner.rank = options_.rank;
  runner.group_token = welcome.group_token;
  runner.debug = options_.debug;
  device_.start_group(epoch, std::move(runner));
}

void Worker::on_message(ipc::Message message) {
  if (ended_) return;
  if (auto* step = std::get_if<ipc::Step>(&message)) {
    device_.step(std::move(*step));
  } else if (const auto* init = std::get_if<ipc::InitCache>(&message)) {
    device_.init_cache(*init);
  } else if (const auto* shutdown = std::get_if<ipc::Shutdown>(&message)) {
    end(kExitOk, fmt::format("shut down by the coordinator: {}", shutdown->reason));
  } else {
    log::warn("a {} is not for a worker; dropped", ipc::message_name(message.index()));
  }
}

void Worker::on_report(DeviceReport report) {
  if (ended_) return;
  const bool current = report.epoch == link_.epoch() && report.epoch != 0;
  const bool idle_talk =
      awaiting_welcome_ && std::holds_alternative<ipc::Heartbeat>(report.message);
  if (current && !idle_talk) link_.send(report.message);
  if (report.exit_code) {
    const auto* failed = std::get_if<ipc::Failed>(&report.message);
    end(*report.exit_code, failed != nullptr ? failed->message : "the device thread ended");
  }
}

void Worker::fail_configuration(const std::string& message) {
  link_.send(ipc::Failed{0, message, true});
  end(kExitConfig, message);
}

void Worker::end(int exit_code, const std::string& reason) {
  if (ended_) return;
  ended_ = true;
  if (exit_code == kExitOk) {
    log::info("ending: {}", reason);
  } else {
    log::error("ending with exit code {}: {}", exit_code, reason);
  }
  executor_->cancel(watch_timer_);
  link_.close();
  on_exit_(exit_code);
}

}  // namespace refrain::worker
