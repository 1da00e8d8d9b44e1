#pragma once
// What a worker's configuration says of the Program that it builds. Pure; errors name the option.

#include "ipc/protocol/messages.h"
#include "runtime/base/result.h"
#include "runtime/config/model/model_config.h"
#include "worker/models/models.h"

namespace refrain::worker {

Result<BuildOptions> build_options(const ModelConfig& model, const ipc::WorkerConfig& config);
// Limits of at least one.
Status check_limits(const ipc::WorkerConfig& config);

}  // namespace refrain::worker
