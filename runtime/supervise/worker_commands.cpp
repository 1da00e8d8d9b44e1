#include "runtime/supervise/worker_commands.h"

#include <unistd.h>

#include "runtime/base/child_process.h"

namespace refrain {

std::vector<std::vector<std::vector<std::string>>> worker_commands(const EngineConfig& config,
                                                                   const std::string& address) {
  std::vector<std::vector<std::vector<std::string>>> groups;
  for (const Group& group : config.groups()) {
    const int ranks = group.num_ranks();
    std::vector<std::vector<std::string>>& commands = groups.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> argv = {sibling_program("worker"),
                                       "--model",
                                       config.model,
                                       "--rank",
                                       std::to_string(rank),
                                       "--tensor-parallel-size",
                                       std::to_string(ranks),
                                       "--coordinator",
                                       address,
                                       "--device",
                                       config.device,
                                       "--host-threads",
                                       std::to_string(config.host_threads),
                                       "--log-level",
                                       config.log_level,
                                       "--parent",
                                       std::to_string(::getpid())};
      if (config.num_groups() > 1)
        argv.insert(argv.end(), {"--group", std::to_string(group.id), "--local-rank",
                                 std::to_string(group.first_worker + rank)});
      const std::vector<std::string> debug = debug_arguments(config.debug);
      argv.insert(argv.end(), debug.begin(), debug.end());
      const std::vector<std::string> adapters = lora_arguments(config.lora);
      argv.insert(argv.end(), adapters.begin(), adapters.end());
      if (!config.draft_model.empty())
        argv.insert(argv.end(), {"--draft-model", config.draft_model});
      if (!config.host_isa.empty()) argv.insert(argv.end(), {"--host-isa", config.host_isa});
      if (!config.fault.empty()) argv.insert(argv.end(), {"--fault", config.fault});
      commands.push_back(std::move(argv));
    }
  }
  return groups;
}

}  // namespace refrain
