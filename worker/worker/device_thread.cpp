#include "worker/worker/device_thread.h"

#include <utility>

#include "runtime/base/last_error.h"

namespace refrain::worker {

namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

DeviceThread::DeviceThread(Options options)
    : options_(std::move(options)),
      signs_(options_.report, options_.heartbeat, options_.flight_fd),
      transfers_(options_.transfer_address) {}

DeviceThread::~DeviceThread() {
  commands_.stop();
  if (thread_.joinable()) thread_.join();
}

Result<std::string> DeviceThread::start(Duration timeout) {
  std::promise<Result<std::string>> started;
  std::promise<void> ended;
  auto name = started.get_future();
  ended_ = ended.get_future();
  thread_ = std::thread([this, started = std::move(started), ended = std::move(ended)]() mutable {
    run(std::move(started));
    ended.set_value();
  });
  if (name.wait_for(timeout) == std::future_status::ready) return name.get();
  return fail(ErrorCode::kUnavailable, "the device did not open within {:.0f} s",
              seconds_of(timeout));
}

bool DeviceThread::stop(Duration timeout) {
  commands_.stop();
  return !ended_.valid() || ended_.wait_for(timeout) == std::future_status::ready;
}

void DeviceThread::run(std::promise<Result<std::string>> started) {
  bool named = false;
  try {
    auto device = options_.make_device();
    if (!device) {
      started.set_value(forward_error(std::move(device).error()));
      return;
    }
    device_ = std::move(*device);
    signs_.set_launches(device_->launch_counter());
    group_ = std::make_unique<HostedGroup>(*device_, commands_, signs_, transfers_,
                                           options_.make_runner, options_.fault);
    started.set_value(device_->name());
    named = true;
    serve();
    group_.reset();
    device_.reset();
  } catch (const std::exception& error) {  // this process is broken: say so and end
    Error broken = error_of(error);
    // Memory that a start does not get may be there at a later try (exit 75).
    const bool ready = group_ != nullptr && group_->ready();
    if (!ready && dynamic_cast<const OutOfMemory*>(&error) != nullptr)
      broken.code = ErrorCode::kUnavailable;
    if (!named) {
      started.set_value(forward_error(broken));
    } else {
      signs_.report_end(broken);
    }
  }
}

void DeviceThread::serve() {
  const int depth = device_->runs_at_once() ? 1 : ModelRunner::kMaxInFlight;
  while (!commands_.stopping()) {
    signs_.beat();
    const int in_flight = group_->in_flight();
    std::optional<DeviceCommand> command;
    if (in_flight < depth)
      command = commands_.take(in_flight == 0 ? options_.heartbeat : Duration::zero());
    if (command) {
      if (const Status status = handle(std::move(*command)); !status) {
        signs_.report_end(status.error());
        return;
      }
    } else if (in_flight > 0) {
      // A device that could take a further step gets it as soon as it comes, so that it has one
      // when it ends the present one.
      group_->wait_unless([&] { return in_flight < depth && commands_.any(); });
    }
  }
}

Status DeviceThread::handle(DeviceCommand command) {
  HostedGroup& group = *group_;
  return std::visit(
      Overloaded{
          [&](StartGroup& start) { return group.start(std::move(start)); },
          [&](const Adopt& adopt) { return group.adopt(adopt); },
          [&](const ipc::InitCache& message) { return group.init_cache(message); },
          [&](const ipc::Step& message) { return group.submit(message); },
          [&](const ipc::Grammar& message) { return group.compile(message); },
          [&](const GrammarCompiled& message) { return group.compiled(message); },
          [&](const ipc::LoadAdapter& message) { return group.load_adapter(message); },
          [&](const AdapterRead& message) { return group.adapter_read(message); },
          [&](const ipc::UnloadAdapter& message) { return group.unload_adapter(message); },
      },
      command);
}

}  // namespace refrain::worker
