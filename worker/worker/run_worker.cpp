// The worker process: puts device thread, control executor and connection together.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <utility>

#include "ipc/transport/address.h"
#include "runtime/actor/io_context.h"
#include "runtime/base/host_name.h"
#include "runtime/base/log.h"
#include "worker/device/factory/factory.h"
#include "worker/worker/fault_hook.h"
#include "worker/worker/worker.h"

namespace refrain::worker {

namespace {

constexpr auto kOpenTimeout = std::chrono::seconds(60);  // a driver that hangs answers nobody
constexpr auto kStopTimeout = std::chrono::seconds(5);   // of a device thread inside a step
constexpr int kLastWordsMs = 1000;                       // to get Failed out before the end

// A whole number of the environment; `otherwise` where none of the names is set to one.
int environment_number(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    char* end = nullptr;
    if (text == nullptr || *text == '\0') continue;
    const long number = std::strtol(text, &end, 10);
    if (*end == '\0' && number >= 0 && number < 1'000'000) return static_cast<int>(number);
  }
  return otherwise;
}

// Launchers that spread ranks over machines say which of them are on this one.
CudaDeviceOptions cuda_options(const WorkerOptions& options) {
  const int local_rank =
      options.local_rank >= 0
          ? options.local_rank
          : environment_number({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"},
                               options.rank);
  return {local_rank, environment_number({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                         options.tensor_parallel_size)};
}

int give_up(const Error& error) {
  log::error("{}{}{}", error.field, error.field.empty() ? "" : ": ", error.message);
  return exit_code(error.code);
}

}  // namespace

int run_worker(const WorkerOptions& options) {
  auto model = load_model_config(options.model);
  if (!model) return give_up(model.error());
  Result<ModelConfig> draft = ModelConfig{};
  if (!options.draft_model.empty()) draft = load_model_config(options.draft_model);
  if (!draft) return give_up(draft.error());
  auto digest = model_digest(options.model, options.draft_model);
  if (!digest) return give_up(digest.error());
  std::optional<FaultHook> fault;
  if (!options.fault.empty()) {
    const auto spec = parse_fault(options.fault);
    if (!spec) return give_up(spec.error());
    if (spec->rank.value_or(options.rank) == options.rank &&
        spec->group.value_or(options.group) == options.group)
      fault.emplace(*spec);
    log::warn("a fault will be staged ({}): this process is for drills only", options.fault);
  }

  IoContext io;
  auto strand = io.make_strand();
  int result = kExitInternal;
  std::unique_ptr<Worker> worker;  // made before io runs, used on the strand only
  DeviceThread::Options device_options;
  device_options.make_device = [&] {
    return create_device(options.device, options.host, cuda_options(options));
  };
  device_options.make_runner = ModelRunner::create;
  device_options.heartbeat = options.heartbeat;
  device_options.flight_fd = options.flight_fd;
  device_options.transfer_address = [&options] {
    return ipc::transfer_address_of(options.local_addr, options.coordinator);
  };
  if (fault) device_options.fault = &*fault;
  device_options.report = [&](DeviceReport report) {
    strand->post(
        [&worker, report = std::move(report)]() mutable { worker->on_report(std::move(report)); });
  };
  log::info("opening the device ({})", options.device);
  DeviceThread device(std::move(device_options));
  auto name = device.start(kOpenTimeout);
  if (!name) {
    const int code = give_up(name.error());
    if (!device.stop(kStopTimeout)) std::_Exit(code);
    return code;
  }

  ipc::EndpointOptions endpoint_options;
  endpoint_options.address = options.coordinator;
  endpoint_options.identity = fmt::format("rank-{}", options.rank);
  if (options.group > 0)
    endpoint_options.identity = fmt::format("group-{}-rank-{}", options.group, options.rank);
  endpoint_options.linger_ms = kLastWordsMs;
  endpoint_options.curve = options.curve;
  endpoint_options.on_refused = [&](const Error& error) {
    worker->end(kExitConfig, error.message);
  };
  auto endpoint = ipc::make_zmq_client(io, endpoint_options, strand);
  if (!endpoint) return give_up(endpoint.error());

  log::info("rank {} of {} on {}, coordinator {}", options.rank, options.tensor_parallel_size,
            *name, options.coordinator);
  const auto watch = [&](const ProcessIdentity& process, std::function<void()> gone) {
    return io.on_process_exit(process, strand, std::move(gone));
  };
  worker = std::make_unique<Worker>(
      options, Worker::Identity{*model, *digest, *name, own_process(), host_name(), *draft}, strand,
      std::move(*endpoint), device, watch, [&](int code) {
        result = code;
        io.stop();
      });
  io.on_signals_for_good({SIGINT, SIGTERM}, strand, [&](int signal) {
    worker->end(kExitOk, signal == SIGINT ? "interrupted" : "terminated");
  });
  if (fault) {
    io.on_signals({SIGUSR1}, strand, [&fault](int) { fault->fire(); });
  }
  strand->post([&] { worker->start(); });
  io.run();
  if (!device.stop(kStopTimeout)) {
    log::error("the device thread did not end within 5 s; leaving without it");
    std::_Exit(result == kExitOk ? kExitOk : kExitInternal);
  }
  return result;
}

}  // namespace refrain::worker
