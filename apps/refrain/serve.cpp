#include "apps/refrain/serve.h"

#include <signal.h>
#include <unistd.h>

#include <random>

#include "runtime/actor/io_context.h"
#include "runtime/base/log.h"
#include "runtime/base/process_limits.h"
#include "runtime/base/report.h"
#include "runtime/bootstrap/check_config.h"
#include "runtime/supervise/run_directory.h"
#include "runtime/supervise/supervisor.h"
#include "runtime/supervise/worker_commands.h"

namespace refrain {

int run_serve(const EngineConfig& given, const std::vector<std::string>& arguments) {
  survive_file_size_limit();
  if (const Status raised = raise_descriptor_limit(kLeastDescriptors); !raised) {
    return report(raised.error());
  }
  // Checked here too, so that a mistake is told once and before any process starts.
  EngineConfig config = given;
  if (config.model.empty()) {
    return report({ErrorCode::kInvalidArgument, "no model given; use --model DIRECTORY", {}});
  }
  const auto model = load_model_config(config.model);
  if (!model) return report(model.error());
  if (Status status = check_config(config, *model); !status) return report(status.error());
  const auto directory = RunDirectory::create();
  if (!directory) return report(directory.error());
  config.ipc_address = directory->address();

  SupervisorOptions options;
  options.seed = std::random_device{}();
  options.workers = worker_commands(config, config.ipc_address);
  options.drain_timeout = to_duration(config.drain_timeout);
  options.max_restarts = config.max_restarts;
  options.incident_dir =
      config.incident_dir.empty() ? directory->path() + "/incidents" : config.incident_dir;
  const auto command = [&arguments](const char* program, std::vector<std::string> more) {
    std::vector<std::string> argv = {sibling_program(program)};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), {"--parent", std::to_string(::getpid())});
    return argv;
  };
  options.coordinator = command("coordinator", {"--listen", config.ipc_address});
  if (config.api_server_count > 0) {
    const std::string address = "ipc://" + directory->path() + "/front";
    options.coordinator.insert(options.coordinator.end(), {"--front", address});
    options.front = command("front", {"--listen", address});
  }
  IoContext io;
  auto strand = io.make_strand();
  int code = kExitOk;
  Supervisor supervisor(io, strand, std::move(options), [&](int ended) {
    code = ended;
    io.stop();
  });
  io.on_signals_for_good({SIGINT, SIGTERM}, strand, [&supervisor](int) { supervisor.stop(); });
  strand->post([&supervisor] { supervisor.start(); });
  io.run();
  return code;
}

}  // namespace refrain
