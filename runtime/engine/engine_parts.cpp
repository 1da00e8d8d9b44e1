#include "runtime/engine/engine_parts.h"

#include <fmt/format.h>

#include <utility>

namespace refrain {
namespace {

WorkerGroupOptions group_options(const EngineParts& parts, const Group& group) {
  const EngineConfig& config = parts.config;
  const int32_t groups = config.num_groups(), index = group.id;
  WorkerGroupOptions options;
  options.identity = {group.num_ranks(), parts.build_id, parts.model_digest, index, groups};
  if (config.has_roles()) options.identity.role = ipc::to_string(group.role);
  options.worker = config.worker_of(group);
  options.process = parts.process;
  // Names of the same epoch of two groups differ.
  options.token_prefix =
      groups == 1 ? parts.token_prefix : fmt::format("{}-g{}", parts.token_prefix, index);
  options.first_epoch = parts.first_epoch;
  options.heartbeat_interval = to_duration(config.heartbeat_interval);
  options.heartbeat_timeout = to_duration(config.heartbeat_timeout);
  options.start_timeout = to_duration(config.start_timeout);
  return options;
}

}  // namespace

GroupService::Parts group_parts(const EngineParts& parts, const Group& group,
                                std::unique_ptr<ipc::Endpoint> endpoint) {
  EngineConfig config = parts.config;
  config.worker = parts.config.worker_of(group);
  return {std::move(config),
          parts.model,
          group_options(parts, group),
          parts.engine_executor,
          std::move(endpoint),
          parts.watch,
          parts.kill,
          parts.trace};
}

}  // namespace refrain
