#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "apps/worker/commands.h"
#include "ipc/transport/address.h"
#include "runtime/base/build_info.h"
#include "runtime/base/log.h"
#include "runtime/config/group_options.h"
#include "runtime/config/model/lora_paths.h"
#include "runtime/config/option_values.h"
#include "runtime/config/options.h"
#include "worker/worker/launcher_environment.h"
#include "worker/worker/worker.h"

namespace refrain {
namespace {

struct ServeArguments {
  worker::WorkerOptions worker;
  std::string model, draft_model;
  std::string log_level = "info";
  pid_t parent = 0;            // 0: none to die with
  double orphan_timeout = 30;  // seconds
};

void add_options(CLI::App& app, ServeArguments& arguments) {
  worker::WorkerOptions& options = arguments.worker;
  app.add_option("--model", arguments.model,
                 "Model directory: config.json and safetensors files, the same on every rank")
      ->transform(model_directory())
      ->required();
  app.add_option("--draft-model", arguments.draft_model,
                 "Directory of the model that drafts for it (--speculative-config)")
      ->transform(model_directory());
  app.add_option("--coordinator", options.coordinator,
                 "Coordinator's address: ipc:///path/name or tcp://host:port "
                 "(or REFRAIN_COORDINATOR, or its host from MASTER_ADDR, LWS_LEADER_ADDRESS, "
                 "SLURM_LAUNCH_NODE_IPADDR)");
  app.add_option("--local-addr", options.local_addr,
                 "Where the other ranks reach this worker if they share no /dev/shm with it: "
                 "HOST or HOST:PORT; at PORT + 1 it answers ranks of other groups (default: the "
                 "address that the tcp:// coordinator is reached "
                 "from, any free port)");
  app.add_option("--curve-key", options.curve.key_file,
                 "Key pair of this worker, a file of `refrain keygen` (tcp:// needs one)");
  app.add_option("--curve-allow", options.curve.allow_file, "Public key of the coordinator");
  app.add_flag("--insecure-tcp", options.curve.insecure_tcp,
               "tcp:// without keys: anyone at that address can be the coordinator");
  app.add_option("--rank", options.rank,
                 "This worker's rank, from 0 (or RANK, SLURM_PROCID, PMIX_RANK, "
                 "OMPI_COMM_WORLD_RANK, LWS_WORKER_INDEX)");
  app.add_option("--group", options.group,
                 "Which of the coordinator's groups this worker joins (--data-parallel-size)")
      ->check(CLI::Range(0, 63));
  add_role_options(app, options.role);
  app.add_option("--local-rank", options.local_rank,
                 "GPU on this machine, from 0 (or LOCAL_RANK, SLURM_LOCALID; else its rank)")
      ->check(CLI::Range(0, 1024));
  app.add_option(
      "--tensor-parallel-size", options.tensor_parallel_size,
      "Number of ranks (or WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE, LWS_GROUP_SIZE)");
  app.add_option("--device", options.device, "auto, host or cuda")->capture_default_str();
  app.add_option("--host-threads", options.host.threads, "Threads of the host device")
      ->capture_default_str();
  app.add_option("--host-isa", options.host.isa,
                 "Instruction set of the host device: scalar, avx2, avx512, avx512_bf16 "
                 "(default: the best there is; or REFRAIN_HOST_ISA)");
  app.add_option("--host-memory", options.host.memory_limit,
                 "Bytes the host device may allocate (default: the machine's memory)");
  app.add_flag("--pin-threads", options.host.pin_threads, "Keep each thread on a core of its own");
  add_lora_paths(app, options.adapters, "OPTIONS");
  add_debug_options(app, options.debug);
  app.add_option("--orphan-timeout", arguments.orphan_timeout,
                 "Seconds to keep weights and graphs for the next coordinator; then exit 75 (30)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--log-level", arguments.log_level, "trace, debug, info, warning, error, off")
      ->capture_default_str();
  app.add_option("--fault", options.fault, "For drills: the fault to stage (docs/drills.md)");
  app.add_option("--flight-fd", options.flight_fd, "Memory of the flight recorder")->group("");
  app.add_option("--parent", arguments.parent, "Process to die with")->group("");
}

// A number from the launcher for an option that was not given.
Status complete_number(const CLI::App& app, const std::string& option,
                       Result<std::optional<int>> (*from)(const worker::Environment&), int& value) {
  if (app.count(option) > 0) return {};
  REFRAIN_ASSIGN_OR_RETURN(const std::optional<int> told, from(&std::getenv));
  if (told) value = *told;
  return {};
}

Status complete(const CLI::App& app, ServeArguments& arguments) {
  worker::WorkerOptions& options = arguments.worker;
  options.model = arguments.model;
  options.draft_model = arguments.draft_model;
  options.orphan_timeout = to_duration(arguments.orphan_timeout);
  REFRAIN_RETURN_IF_ERROR(complete_number(app, "--rank", worker::rank_from, options.rank));
  REFRAIN_RETURN_IF_ERROR(complete_number(app, "--tensor-parallel-size", worker::size_from,
                                          options.tensor_parallel_size));
  if (options.coordinator.empty()) options.coordinator = worker::coordinator_from(&std::getenv);
  if (options.host.isa.empty()) {
    if (const char* isa = std::getenv("REFRAIN_HOST_ISA")) options.host.isa = isa;
  }
  if (options.coordinator.empty())
    return fail_field("coordinator", "give --coordinator ADDRESS or set REFRAIN_COORDINATOR");
  if (options.tensor_parallel_size < 1) {
    return fail_field("tensor-parallel-size", "there must be at least 1 rank, not {}",
                      options.tensor_parallel_size);
  }
  if (options.rank < 0 || options.rank >= options.tensor_parallel_size) {
    return fail_field("rank", "rank {} is not among the {} ranks 0 to {}", options.rank,
                      options.tensor_parallel_size, options.tensor_parallel_size - 1);
  }
  if (options.tensor_parallel_size == 1) return {};
  REFRAIN_ASSIGN_OR_RETURN(options.listen_on,
                           ipc::listen_address_of(options.local_addr, options.coordinator));
  return {};
}

int refuse(const Error& error) {
  std::fprintf(stderr, "worker: %s%s%s\n", error.field.c_str(), error.field.empty() ? "" : ": ",
               error.message.c_str());
  return exit_code(error.code);
}

}  // namespace

int serve_command(const std::vector<std::string>& given) {
  ServeArguments arguments;
  CLI::App app("Runs one tensor-parallel rank of a model for a coordinator.", "worker");
  app.set_version_flag("--version", build_id());
  add_options(app, arguments);
  const auto parsed = parse_command_line(app, given);
  if (!parsed) return refuse(parsed.error());
  if (parsed->exit_now) return kExitOk;
  if (const Status status = complete(app, arguments); !status) return refuse(status.error());
  const int group = arguments.worker.group, rank = arguments.worker.rank;
  init_logging(
      group == 0 ? fmt::format("worker {}", rank) : fmt::format("worker {}.{}", group, rank),
      arguments.log_level);
  if (!die_with(arguments.parent)) return kExitTryAgain;
  return worker::run_worker(arguments.worker);
}

}  // namespace refrain
